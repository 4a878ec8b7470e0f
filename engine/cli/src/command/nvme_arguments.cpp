#include "command/nvme_arguments.hpp"

#include "command/command_line.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/config/train_config.hpp"

namespace sluice::cli {

namespace {

std::uint64_t to_bytes(const std::string& flag, const std::string& text) {
  try {
    const std::uint64_t bytes = parse_bytes(text);
    SLUICE_CHECK(bytes > 0, "0 bytes");
    return bytes;
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(flag + ": " + error.what());
  }
}

std::uint32_t block_bytes(const std::string& flag, std::uint64_t bytes, const std::string& text) {
  SLUICE_CHECK(bytes % 4096 == 0 && bytes <= kGiB,
               flag + ": expected a multiple of 4096, at most 1GiB, found \"" + text + "\"");
  return static_cast<std::uint32_t>(bytes);
}

void add_paths(CLI::App& command, DriveArguments& arguments) {
  CLI::Option* paths =
      command.add_option("PATH", arguments.paths,
                         "directories, where a file of random data is made and later reused, or "
                         "existing files; several are measured at once");
  paths->type_name("PATH...");
  paths->required();
}

void add_drive_options(CLI::App& command, DriveArguments& arguments) {
  add_option(
      command, "--size", "BYTES", Need::optional,
      "part of the file that is used (default 1GiB in a directory, else the whole file)",
      [&arguments](const std::string& text) { arguments.size_bytes = to_bytes("--size", text); });
  add_option(
      command, "--backend", "NAME", Need::optional, "auto (default), io_uring, libaio or threads",
      [&arguments](const std::string& text) { arguments.backend = nvme::parse_backend(text); });
  add_option(command, "--io-threads", "N", Need::optional,
             "threads of the backend of that name, 1 to 64 (default 8)",
             [&arguments](const std::string& text) {
               arguments.io_threads = to_count("--io-threads", text, 64);
             });
  add_flag(command, "--overwrite", "allow an existing file to be written to", arguments.overwrite);
  add_flag(command, "--clean", "remove the file of random data afterwards", arguments.clean);
}

void add_pattern_options(CLI::App& command, NvmeBenchArguments& arguments) {
  add_option(command, "--op", "OP", Need::optional,
             "read (default), write, mixed (half and half), or swap: an optimizer's step, read, "
             "touch, write back",
             [&arguments](const std::string& text) {
               arguments.pattern = nvme::parse_load_pattern(text);
             });
  add_option(
      command, "--access", "WHERE", Need::optional, "sequential (default) or random",
      [&arguments](const std::string& text) { arguments.access = nvme::parse_load_access(text); });
  add_option(command, "--block", "BYTES", Need::optional,
             "size of a request, a multiple of 4096 (default 256KiB)",
             [&arguments](const std::string& text) {
               arguments.block_bytes = block_bytes("--block", to_bytes("--block", text), text);
             });
  add_option(
      command, "--depth", "N", Need::optional, "requests in flight, 1 to 4096 (default 32)",
      [&arguments](const std::string& text) { arguments.depth = to_count("--depth", text, 4096); });
  add_option(command, "--reads-per-write", "N", Need::optional,
             "requests read in a row while a write waits, 1 to 1024 (default 3)",
             [&arguments](const std::string& text) {
               arguments.reads_per_write = to_count("--reads-per-write", text, 1024);
             });
}

// "host": none; "cuda": the first GPU; "cuda:1".
std::optional<int> to_gpu(const std::string& text) {
  using Kind = config::ComputeDevice::Kind;
  const std::optional<config::ComputeDevice> device = config::find_device(text);
  SLUICE_CHECK(device && device->kind != Kind::automatic,
               "--memory: expected host, cuda or cuda:1, found \"" + text + "\"");
  if (device->kind == Kind::host) return std::nullopt;
  return device->index.value_or(0);
}

// ds_io writes sizes as 400M, in powers of two.
std::uint64_t to_bytes_of_ds_io(const std::string& flag, const std::string& text) {
  const bool short_unit = !text.empty() && std::string("KMG").find(text.back()) < 3;
  return to_bytes(flag, short_unit ? text + "iB" : text);
}

// fio's names, in no help: each is an error that tells the name here, also without a value.
void add_names_of_fio(CLI::App& command) {
  const std::pair<const char*, const char*> twins[] = {{"--bs", "--block"},
                                                       {"--iodepth", "--depth"},
                                                       {"--rw", "--op and --access"},
                                                       {"--runtime", "--seconds"},
                                                       {"--numjobs", "--io-threads"},
                                                       {"--ioengine", "--backend"},
                                                       {"--filename", "the argument PATH"},
                                                       {"--directory", "the argument PATH"}};
  for (const auto& [theirs, ours] : twins) {
    const std::string message = std::string(theirs) + " is fio's name: here it is " + ours;
    command
        .add_option_function<std::string>(
            theirs, [message](const std::string&) { throw InvalidArgument(message); })
        ->group("")
        ->expected(0, 1);
  }
}

// The names that DeepSpeed's ds_io has for these options. Its loops and threads of its own have no
// equal: a load runs for --seconds, through one engine.
void add_names_of_ds_io(CLI::App& command, NvmeBenchArguments& arguments) {
  const std::string usual_group = command.option_defaults()->get_group();
  command.option_defaults()->group("names of DeepSpeed's ds_io");
  add_option(command, "--io_size", "BYTES", Need::optional, "as --size",
             [&arguments](const std::string& text) {
               arguments.size_bytes = to_bytes_of_ds_io("--io_size", text);
             });
  add_option(command, "--block_size", "BYTES", Need::optional, "as --block",
             [&arguments](const std::string& text) {
               arguments.block_bytes =
                   block_bytes("--block_size", to_bytes_of_ds_io("--block_size", text), text);
             });
  add_option(command, "--queue_depth", "N", Need::optional, "as --depth",
             [&arguments](const std::string& text) {
               arguments.depth = to_count("--queue_depth", text, 4096);
             });
  add_option(command, "--io_parallel", "N", Need::optional, "as --io-threads",
             [&arguments](const std::string& text) {
               arguments.io_threads = to_count("--io_parallel", text, 64);
             });
  const auto read = [&arguments] { arguments.pattern = nvme::LoadPattern::read; };
  command.add_flag_callback("--read", read, "as --op read; ds_io writes without it")
      ->disable_flag_override();
  const std::pair<const char*, const char*> twins[] = {{"--io_size", "--size"},
                                                       {"--block_size", "--block"},
                                                       {"--queue_depth", "--depth"},
                                                       {"--io_parallel", "--io-threads"},
                                                       {"--read", "--op"}};
  for (const auto& [theirs, ours] : twins)
    command.get_option(theirs)->excludes(command.get_option(ours));
  command.option_defaults()->group(usual_group);
}

void add_bench(CLI::App& group, Building& building) {
  CLI::App& command =
      add_command(group, building, "bench", "measure a drive through the engine that training uses",
                  "sluice nvme bench /mnt/nvme --op swap --seconds 10 --html swap.html");
  NvmeBenchArguments& arguments = building.nvme_bench;
  add_paths(command, arguments);
  add_pattern_options(command, arguments);
  add_drive_options(command, arguments);
  add_names_of_ds_io(command, arguments);
  add_names_of_fio(command);
  add_option(
      command, "--seconds", "S", Need::optional, "how long to measure (default 5; with --fio 8)",
      [&arguments](const std::string& text) {
        arguments.seconds = to_real("--seconds", text);
        SLUICE_CHECK(arguments.seconds > 0 && arguments.seconds <= 86400,
                     "--seconds: expected more than 0 and at most a day, found \"" + text + "\"");
      });
  add_option(command, "--memory", "WHERE", Need::optional,
             "host (default), or cuda: the ways between the drive and a GPU's memory, beside the "
             "drive and copies alone",
             [&arguments](const std::string& text) { arguments.gpu = to_gpu(text); });
  add_option(command, "--tensors", "N", Need::optional,
             "with --op swap: the states of N tensors of 1 byte to 64 MiB instead of equal tiles",
             [&arguments](const std::string& text) {
               arguments.tensors = to_count("--tensors", text, 1'000'000);
             });
  add_flag(command, "--fio",
           "compare with fio on the same file, in alternating slices; a second slice of fio in "
           "each round shows the drive's own changes",
           arguments.fio);
  add_option(command, "--slice", "S", Need::optional,
             "length of a slice with --fio, in seconds (default 1)",
             [&arguments](const std::string& text) {
               arguments.slice_seconds = to_real("--slice", text);
               SLUICE_CHECK(arguments.slice_seconds >= 0.1 && arguments.slice_seconds <= 60,
                            "--slice: expected 0.1 to 60, found \"" + text + "\"");
             });
  add_text(command, "--html", "FILE", Need::optional, "write a page with the throughput over time",
           arguments.html_path);
  when_named(command, building, [&building, &command] {
    NvmeBenchArguments& asked = building.nvme_bench;
    SLUICE_CHECK(asked.fio || command.get_option("--slice")->count() == 0, "--slice: needs --fio");
    // Rounds for an interval of the ratio.
    constexpr double kSecondsWithFio = 8;
    if (asked.fio && command.get_option("--seconds")->count() == 0) asked.seconds = kSecondsWithFio;
    return asked;
  });
}

void add_tune(CLI::App& group, Building& building) {
  CLI::App& command = add_command(
      group, building, "tune",
      "find the block size, the depth and the order of reads and writes that suit a drive best",
      "sluice nvme tune /mnt/nvme --out tuned.json --html tuned.html\n"
      "  sluice train --config ds.json --config tuned.json ...");
  NvmeTuneArguments& arguments = building.nvme_tune;
  add_paths(command, arguments);
  add_drive_options(command, arguments);
  add_text(command, "--out", "FILE", Need::required,
           "write the settings here, as the part of a configuration that a second --config adds",
           arguments.out_path);
  add_option(command, "--seconds", "S", Need::optional,
             "how long to measure, 5 to 600 (default 45)", [&arguments](const std::string& text) {
               arguments.seconds = to_real("--seconds", text);
               SLUICE_CHECK(arguments.seconds >= 5 && arguments.seconds <= 600,
                            "--seconds: expected 5 to 600, found \"" + text + "\"");
             });
  add_text(command, "--html", "FILE", Need::optional, "write a page with the measured surface",
           arguments.html_path);
  when_named(command, building, [&building] { return building.nvme_tune; });
}

void add_verify(CLI::App& group, Building& building) {
  CLI::App& command = add_command(
      group, building, "verify",
      "check every length and checksum of a swap directory or a checkpoint; changes nothing",
      "sluice nvme verify /mnt/nvme/swap");
  add_text(command, "DIR", "DIR", Need::required, "swap directory of a run, or a checkpoint",
           building.nvme_verify.directory);
  when_named(command, building, [&building] { return building.nvme_verify; });
}

void add_clean(CLI::App& group, Building& building) {
  CLI::App& command =
      add_command(group, building, "clean",
                  "remove the leftovers of a dead run from a swap directory; committed data stays",
                  "sluice nvme clean /mnt/nvme/swap --dry-run");
  NvmeCleanArguments& arguments = building.nvme_clean;
  add_text(command, "DIR", "DIR", Need::required,
           "swap directory of a run, a directory of checkpoints, or a checkpoint",
           arguments.directory);
  add_flag(command, "--committed",
           "remove the whole run or all checkpoints, committed data included", arguments.committed);
  add_flag(command, "--dry-run", "list what would be removed, and remove nothing",
           arguments.dry_run);
  when_named(command, building, [&building] { return building.nvme_clean; });
}

}  // namespace

void add_nvme(CLI::App& root, Building& building) {
  CLI::App& group =
      *root.add_subcommand("nvme", "measure drives; check and clear a swap directory");
  group.set_help_flag("-h,--help", "this text");
  group.footer("sluice nvme bench /mnt/nvme --op mixed");
  group.require_subcommand(1);
  add_bench(group, building);
  add_tune(group, building);
  add_verify(group, building);
  add_clean(group, building);
}

}  // namespace sluice::cli
