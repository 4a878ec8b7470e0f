#include "launch/host_lines.hpp"

#include <algorithm>

#include "launch/program.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/launch_environment.hpp"
#include "sluice/base/text.hpp"

namespace sluice::cli {

namespace {

using Line = std::vector<std::string>;

void append(Line& line, const Line& more) {
  line.insert(line.end(), more.begin(), more.end());
}

std::string master_port(const LaunchArguments& arguments) {
  return std::to_string(arguments.master_port == 0 ? kDefaultMasterPort
                                                   : static_cast<int>(arguments.master_port));
}

std::string master_address(const LaunchArguments& arguments, const std::vector<Host>& hosts) {
  return arguments.master_address.empty() ? address_of(hosts.front().name)
                                          : arguments.master_address;
}

// GPUs other than the named ones are hidden from the ranks of the host.
Line hide_gpus(const Host& host) {
  if (!host.is_filtered) return {};
  return {"env", "CUDA_VISIBLE_DEVICES=" + join(host.slots, ",")};
}

bool have_equal_slots(const std::vector<Host>& hosts) {
  return std::all_of(hosts.begin(), hosts.end(), [&](const Host& host) {
    return host.slots == hosts.front().slots && host.is_filtered == hosts.front().is_filtered;
  });
}

// One part for each host: each has its own number of ranks, and GPUs that it hides.
HostLine mpirun_line(const LaunchArguments& arguments, const std::vector<Host>& hosts) {
  Line line = {"mpirun", "--bind-to", "none", "--tag-output"};
  if (!arguments.log_directory.empty())
    append(line, {"--output-filename", arguments.log_directory});
  append(line, {"-x", "MASTER_ADDR=" + master_address(arguments, hosts), "-x",
                "MASTER_PORT=" + master_port(arguments)});
  for (const Host& host : hosts) {
    // Open MPI takes the text behind the first colon for slots, in brackets too.
    SLUICE_CHECK(host.name.find(':') == std::string::npos,
                 "mpirun starts no ranks on an IPv6 address (" + host.name +
                     "): give this host a name, in DNS or /etc/hosts, and write it in --hostfile");
    if (&host != &hosts.front()) line.emplace_back(":");
    const std::string ranks = std::to_string(host.slots.size());
    append(line, {"-H", host.name + ":" + ranks, "-n", ranks});
    append(line, hide_gpus(host));
    append(line, program_line(arguments));
  }
  return {"", line};
}

HostLine srun_line(const LaunchArguments& arguments, const std::vector<Host>& hosts) {
  SLUICE_CHECK(have_equal_slots(hosts),
               "srun starts as many ranks on each host, with equal GPUs: choose --launcher mpirun, "
               "or equal slots");
  const std::size_t ranks = hosts.front().slots.size();
  Line line = {"srun",
               "--nodes=" + std::to_string(hosts.size()),
               "--ntasks=" + std::to_string(hosts.size() * ranks),
               "--ntasks-per-node=" + std::to_string(ranks),
               "--kill-on-bad-exit=1",
               "--label"};
  std::string names;
  for (const Host& host : hosts) names += (names.empty() ? "" : ",") + address_of(host.name);
  if (!hosts.front().name.empty()) line.push_back("--nodelist=" + names);
  if (!arguments.log_directory.empty())
    line.push_back("--output=" + arguments.log_directory + "/rank-%t.log");
  // Without an address the ranks take the first host of the step (launch_environment.hpp).
  std::string exported = "--export=ALL,MASTER_PORT=" + master_port(arguments);
  const std::string address = master_address(arguments, hosts);
  if (!address.empty()) exported += ",MASTER_ADDR=" + address;
  line.push_back(exported);
  append(line, hide_gpus(hosts.front()));
  append(line, program_line(arguments));
  return {"", line};
}

HostLine torchrun_line(const LaunchArguments& arguments, const std::vector<Host>& hosts,
                       std::size_t node) {
  const Host& host = hosts[node];
  Line line = hide_gpus(host);
  append(line, {"torchrun", "--nnodes=" + std::to_string(hosts.size()),
                "--node-rank=" + std::to_string(node),
                "--nproc-per-node=" + std::to_string(host.slots.size()),
                "--master-addr=" + master_address(arguments, hosts),
                "--master-port=" + master_port(arguments)});
  if (!arguments.log_directory.empty())
    append(line, {"--log-dir=" + arguments.log_directory, "--tee=3"});
  if (arguments.is_module) line.emplace_back("--module");
  if (!is_python(arguments)) line.emplace_back("--no-python");
  append(line, is_python(arguments) ? arguments.program : program_line(arguments));
  return {host.name, line};
}

}  // namespace

std::vector<HostLine> host_lines(const LaunchArguments& arguments, const std::vector<Host>& hosts,
                                 LaunchHow how) {
  SLUICE_CHECK(!arguments.bind_cores,
               "--bind-cores-to-rank is for ranks of this host, whose cores are known: give mpirun "
               "or srun their own flags in the line that is printed without it");
  if (how == LaunchHow::mpirun) return {mpirun_line(arguments, hosts)};
  if (how == LaunchHow::srun) return {srun_line(arguments, hosts)};
  SLUICE_CHECK(!hosts.front().name.empty(), "torchrun needs names of hosts: give --hostfile");
  SLUICE_CHECK(
      !arguments.run,
      "--run starts mpirun or srun; torchrun is started on each host: run the lines there, "
      "or choose --launcher mpirun or srun");
  std::vector<HostLine> lines;
  for (std::size_t node = 0; node < hosts.size(); ++node)
    lines.push_back(torchrun_line(arguments, hosts, node));
  return lines;
}

}  // namespace sluice::cli
