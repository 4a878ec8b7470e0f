#include "command/command_builder.hpp"

#include "command/command_line.hpp"

namespace sluice::cli {

CLI::App& add_command(CLI::App& parent, Building& building, const std::string& name,
                      const std::string& description, const std::string& example) {
  CLI::App& command = *parent.add_subcommand(name, description);
  command.set_help_flag("-h,--help", "this text");
  command.footer(example);
  add_flag(command, "--json",
           "one JSON object on the last line of standard output; text goes to standard error",
           building.invocation.json);
  return command;
}

}  // namespace sluice::cli
