#pragma once
// The pieces of a command line, over CLI11: options with checked values, the help text, and errors
// that name the nearest flag. Private to command_builder.cpp and *_arguments.cpp.
// Thread-compatible: callers synchronise.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace sluice::cli {

enum class Need { required, optional };

// Adds an option with a value. `store` receives the text and throws InvalidArgument for an invalid
// one.
void add_option(CLI::App& command, const std::string& flag, const std::string& placeholder,
                Need need, const std::string& help,
                const std::function<void(const std::string&)>& store);
void add_text(CLI::App& command, const std::string& flag, const std::string& placeholder, Need need,
              const std::string& help, std::string& target);
// Adds an option that may be given several times, with one FILE each time.
void add_files(CLI::App& command, const std::string& flag, Need need, const std::string& help,
               std::vector<std::string>& target);
void add_flag(CLI::App& command, const std::string& flag, const std::string& help, bool& target);

// Conversions of an option's text. Each throws InvalidArgument, with `flag` in the message.
std::int64_t to_integer(const std::string& flag, const std::string& text, std::int64_t at_least);
// The value of --epochs, at most 10^9.
std::int64_t to_epochs(const std::string& text);
// A whole number from 1 to `most`.
unsigned to_count(const std::string& flag, const std::string& text, unsigned most);
std::uint64_t to_unsigned(const std::string& flag, const std::string& text);
double to_real(const std::string& flag, const std::string& text);

// Text of --help: usage, description, options, commands, example (CLI11's footer).
std::string help_text(const CLI::App& command);

// Message for arguments that CLI11 refused.
std::string usage_message(const CLI::App& root, const CLI::ParseError& error);

// After CLI11 has taken the arguments: refuses "--flag=", whose value CLI11 takes from the next
// argument, and a flag of the command in the place of a value. Throws InvalidArgument.
void check_values(const CLI::App& root, const std::vector<std::string>& arguments);

// The deepest command on the command line; `root` when the command line has none.
const CLI::App& named_command(const CLI::App& root);
// "config check: MESSAGE"; main puts the program's name before it.
std::string in_command(const CLI::App& command, const std::string& message);

}  // namespace sluice::cli
