#include "command/launch_arguments.hpp"

#include "command/command_line.hpp"
#include "sluice/base/error.hpp"

namespace sluice::cli {

namespace {

constexpr unsigned kMostRanks = 65536;
constexpr unsigned kMostPort = 65535;

// DeepSpeed writes flags with underscores, torchrun with hyphens: both are taken.
std::string both_spellings(const std::string& flag) {
  std::string underscored = flag;
  for (char& letter : underscored) {
    if (letter == '-' && &letter >= underscored.data() + 2) letter = '_';
  }
  return underscored == flag ? flag : flag + "," + underscored;
}

void add_value(CLI::App& command, const std::string& flag, const std::string& placeholder,
               const std::string& help, std::string& target) {
  add_text(command, both_spellings(flag), placeholder, Need::optional, help, target);
}

void add_number(CLI::App& command, const std::string& flag, unsigned most, const std::string& help,
                unsigned& target) {
  add_option(
      command, both_spellings(flag), "N", Need::optional, help,
      [flag, most, &target](const std::string& text) { target = to_count(flag, text, most); });
}

void add_switch(CLI::App& command, const std::string& flag, const std::string& help, bool& target) {
  add_flag(command, both_spellings(flag), help, target);
}

void add_hosts(CLI::App& command, LaunchArguments& arguments) {
  add_number(
      command, "--num-gpus", kMostRanks,
      "ranks on each host, one for each GPU; on a host without GPUs, the number of processes "
      "(default: the GPUs of this host, else 1)",
      arguments.num_gpus);
  add_number(command, "--num-nodes", kMostRanks,
             "hosts: the first N of --hostfile, or of the Slurm job (default: all)",
             arguments.num_nodes);
  add_value(command, "--hostfile", "FILE", "hosts, one a line: \"NAME slots=N\"",
            arguments.hostfile);
  add_value(command, "--include", "HOSTS",
            "only these hosts and GPUs of them: host1@host2:0,2 is all of host1, and 0 and 2 of "
            "host2",
            arguments.include);
  add_value(command, "--exclude", "HOSTS", "all hosts and GPUs but these, written likewise",
            arguments.exclude);
  add_value(command, "--master-addr", "HOST",
            "host of rank 0 (default: 127.0.0.1; the first of several hosts)",
            arguments.master_address);
  add_number(command, "--master-port", kMostPort,
             "port where the ranks meet (default: a free one; 29500 on several hosts)",
             arguments.master_port);
}

LaunchHow parse_how(const std::string& text) {
  if (text == "auto") return LaunchHow::automatic;
  if (text == "torchrun") return LaunchHow::torchrun;
  if (text == "mpirun") return LaunchHow::mpirun;
  if (text == "srun") return LaunchHow::srun;
  throw InvalidArgument("--launcher: expected auto, torchrun, mpirun or srun, found \"" + text +
                        "\"");
}

void add_ways(CLI::App& command, LaunchArguments& arguments) {
  add_option(command, "--launcher", "NAME", Need::optional,
             "auto (default): mpirun for sluice train (srun in a Slurm job of several hosts), "
             "torchrun's variables for other programs; or torchrun, mpirun, srun",
             [&arguments](const std::string& text) { arguments.how = parse_how(text); });
  add_switch(command, "--run", "several hosts: run the line of mpirun or srun, instead of printing",
             arguments.run);
  add_value(command, "--log-dir", "DIR",
            "append the output of each rank to DIR/rank-N.log too; made if absent",
            arguments.log_directory);
  add_switch(command, "--bind-cores-to-rank",
             "give each rank of this host its own share of the cores", arguments.bind_cores);
  add_value(command, "--bind-core-list", "LIST",
            "the cores to share: 0-7,16-23 (default: all that this process may use)",
            arguments.core_list);
  add_switch(command, "--module", "PROGRAM is a Python module, as in python -m",
             arguments.is_module);
  add_switch(command, "--no-python", "run PROGRAM itself, also when it ends in .py",
             arguments.no_python);
  add_option(command, "--grace", "SECONDS", Need::optional,
             "time of ranks to end after a signal, or when output fails (default 60)",
             [&arguments](const std::string& text) {
               arguments.grace_seconds = to_real("--grace", text);
               SLUICE_CHECK(arguments.grace_seconds >= 0 && arguments.grace_seconds <= 1e6,
                            "--grace: expected 0 to 1000000 seconds, found \"" + text + "\"");
             });
  // mpirun starts this program around each rank; in no help.
  add_option(command, "--as-rank", "PIPES", Need::optional, "",
             [&arguments](const std::string& text) { arguments.as_rank = text; });
  command.get_option("--as-rank")->group("");
}

LaunchArguments checked(LaunchArguments arguments, const CLI::App& command) {
  arguments.program = command.remaining();
  SLUICE_CHECK(!arguments.program.empty(), "missing PROGRAM (sluice launch --help)");
  if (arguments.program.front().rfind('-', 0) == 0)
    throw CLI::ExtrasError(command.get_name(), arguments.program);
  SLUICE_CHECK(arguments.include.empty() || arguments.exclude.empty(),
               "--include and --exclude exclude each other; give one");
  SLUICE_CHECK(!arguments.is_module || !arguments.no_python,
               "--module and --no-python exclude each other; give one");
  SLUICE_CHECK(arguments.core_list.empty() || arguments.bind_cores,
               "--bind-core-list needs --bind-cores-to-rank");
  return arguments;
}

}  // namespace

void add_launch(CLI::App& root, Building& building) {
  CLI::App& command = add_command(
      root, building, "launch",
      "start the ranks of a run: here, or with the line of mpirun, srun or torchrun for several "
      "hosts",
      "sluice launch --num-gpus 2 train.py --epochs 3\n"
      "  sluice launch --num-gpus 2 --bind-cores-to-rank sluice train --config ds.json \\\n"
      "      --model config.json --data text.txt\n"
      "  sluice launch --hostfile hosts --include host1:0,2@host2 train.py");
  command.prefix_command();  // flags behind PROGRAM are the program's
  add_hosts(command, building.launch);
  add_ways(command, building.launch);
  when_named(command, building,
             [&building, &command] { return checked(building.launch, command); });
}

}  // namespace sluice::cli
