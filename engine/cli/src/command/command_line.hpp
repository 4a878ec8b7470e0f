#pragma once
// The pieces of a command line, over CLI11: options with checked values, the help text, and errors
// that name the nearest flag. Private to arguments.cpp and
// *_arguments.cpp. Thread-compatible: callers synchronise.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace sluice::cli {

enum class Need { required, optional };

// An option with a value; `store` gets the text and throws InvalidArgument when it is no good.
void add_option(CLI::App& command, const std::string& flag, const std::string& placeholder,
                Need need, const std::string& help, std::function<void(const std::string&)> store);
void add_text(CLI::App& command, const std::string& flag, const std::string& placeholder, Need need,
              const std::string& help, std::string& target);
// May be given several times, one value each.
void add_texts(CLI::App& command, const std::string& flag, const std::string& placeholder,
               Need need, const std::string& help, std::vector<std::string>& target);
void add_flag(CLI::App& command, const std::string& flag, const std::string& help, bool& target);

// Values of options; `flag` is for the message of the InvalidArgument that they throw.
std::int64_t to_integer(const std::string& flag, const std::string& text, std::int64_t at_least);
// The same, at least 1 and at most `most`.
unsigned to_count(const std::string& flag, const std::string& text, unsigned most);
std::uint64_t to_unsigned(const std::string& flag, const std::string& text);
double to_real(const std::string& flag, const std::string& text);

// The text of --help: usage, description, options, commands, example (CLI11's footer).
std::string help_text(const CLI::App& command);

// The one message for arguments that CLI11 refused.
std::string usage_message(const CLI::App& root, const CLI::ParseError& error);

// The deepest command that was named: root itself when none was.
const CLI::App& named_command(const CLI::App& root);
// "sluice config check".
std::string full_name(const CLI::App& command);
// "config check: MESSAGE"; main puts the program's name before it.
std::string in_command(const CLI::App& command, const std::string& message);

}  // namespace sluice::cli
