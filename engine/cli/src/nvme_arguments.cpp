// The command group `sluice nvme`.

#include "command_builder.hpp"
#include "command_line.hpp"

namespace sluice::cli {

namespace {

void add_verify(CLI::App& group, Building& building) {
  CLI::App& command = add_command(
      group, building, "verify",
      "check every length and checksum of a swap directory or a checkpoint; changes nothing",
      "sluice nvme verify /mnt/nvme/swap");
  add_text(command, "DIR", "DIR", Need::required, "swap directory of a run, or a checkpoint",
           building.nvme_verify.directory);
  command.parse_complete_callback([&building] {
    building.select = [&building] { building.invocation.command = building.nvme_verify; };
  });
}

void add_clean(CLI::App& group, Building& building) {
  CLI::App& command =
      add_command(group, building, "clean",
                  "remove what a dead run left in a swap directory; what is committed stays",
                  "sluice nvme clean /mnt/nvme/swap --dry-run");
  NvmeCleanArguments& arguments = building.nvme_clean;
  add_text(command, "DIR", "DIR", Need::required, "swap directory of a run, or a checkpoint",
           arguments.directory);
  add_flag(command, "--committed", "remove the whole run, what is committed included",
           arguments.committed);
  add_flag(command, "--dry-run", "list what would be removed, and remove nothing",
           arguments.dry_run);
  command.parse_complete_callback([&building] {
    building.select = [&building] { building.invocation.command = building.nvme_clean; };
  });
}

}  // namespace

void add_nvme(CLI::App& root, Building& building) {
  CLI::App& group = *root.add_subcommand("nvme", "check and clear a swap directory");
  group.set_help_flag("-h,--help", "this text");
  group.footer("sluice nvme verify /mnt/nvme/swap");
  group.require_subcommand(1);
  add_verify(group, building);
  add_clean(group, building);
}

}  // namespace sluice::cli
