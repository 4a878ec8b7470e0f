#include "command/command_line.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"
#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {

constexpr std::size_t kHelpColumns = 80;

std::string quoted(const std::string& text) {
  return "\"" + text + "\"";
}

// DeepSpeed's names with underscores are taken, and not shown.
enum class Names { first, all };

std::string shown_name(const CLI::Option& option, Names kind) {
  if (option.get_positional()) return option.get_type_name();
  std::string shown;
  for (const std::string& name : option.get_snames()) shown += "-" + name + ", ";
  shown += "--" + option.get_lnames().front();
  if (kind == Names::all) {
    for (const std::string& name : option.get_lnames())
      if (name.find('_') == std::string::npos && name != option.get_lnames().front())
        shown += ", --" + name;
  }
  if (option.get_type_size() != 0) shown += " " + option.get_type_name();
  return shown;
}

// The rows as two columns; the second column is wrapped.
std::string two_columns(const std::vector<std::pair<std::string, std::string>>& rows) {
  std::size_t width = 0;
  for (const auto& [name, text] : rows) width = std::max(width, name.size());
  const std::size_t indent = width + 4;
  std::string out;
  for (const auto& [name, text] : rows) {
    std::string lead = "  " + name + std::string(indent - 2 - name.size(), ' ');
    for (const std::string& line : wrap(text, kHelpColumns - indent)) {
      out += std::exchange(lead, std::string(indent, ' ')) + line + "\n";
    }
  }
  return out;
}

// "sluice config check".
std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return (parent == nullptr ? "" : full_name(*parent) + " ") + command.get_name();
}

std::string usage_line(const CLI::App& command) {
  std::string line = "usage: " + full_name(command);
  if (!command.get_subcommands({}).empty()) line += " COMMAND";
  for (const CLI::Option* option : command.get_options()) {
    const bool is_named_anyway = option->get_required() || option->get_positional();
    if (is_named_anyway) line += " " + shown_name(*option, Names::first);
  }
  line += " [options]";
  if (command.get_prefix_command()) line += " PROGRAM [arguments of PROGRAM]";
  std::string out;
  std::string lead;
  for (const std::string& part : wrap(line, kHelpColumns - 4)) {
    out += lead + part + "\n";
    lead = "    ";
  }
  return out;
}

const std::string kUsualGroup = "Options";  // CLI11's name

// The usual group comes first. Options without a group are in no help.
std::vector<std::string> option_groups(const CLI::App& command) {
  std::vector<std::string> groups = {kUsualGroup};
  for (const CLI::Option* option : command.get_options()) {
    const std::string& group = option->get_group();
    if (!group.empty() && std::ranges::find(groups, group) == groups.end()) groups.push_back(group);
  }
  return groups;
}

std::vector<std::string> flag_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) continue;
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::vector<std::string> command_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* sub : command.get_subcommands({})) names.push_back(sub->get_name());
  return names;
}

std::string nearest(const std::string& name, const std::vector<std::string>& candidates) {
  const std::vector<std::string_view> views(candidates.begin(), candidates.end());
  return did_you_mean(nearest_name(name, views));
}

std::string unexpected_argument(const CLI::App& command, const std::string& argument) {
  if (argument.rfind('-', 0) == 0) {
    const std::string flag = argument.substr(0, argument.find('='));
    return "unknown flag " + quoted(flag) + nearest(flag, flag_names(command));
  }
  const std::vector<std::string> commands = command_names(command);
  if (command.get_parent() == nullptr && argument == "data")
    return "\"data\" is a command of the Python package: run pip install '.[data]' in a clone of "
           "Sluice, not the package sluice of PyPI, which is another project";
  if (!commands.empty()) return "unknown command " + quoted(argument) + nearest(argument, commands);
  if (argument == "true" || argument == "false")
    return "unexpected argument " + quoted(argument) + "; a switch such as --bf16 takes no value";
  return "unexpected argument " + quoted(argument) +
         "; values follow their flag, as in --flag VALUE";
}

// CLI11's text starts with the option's name.
std::string wrong_number_of_values(const CLI::App& command, const CLI::ParseError& error) {
  const std::string text = error.what();
  const std::string name = text.substr(0, text.find_first_of(": "));
  if (text.ends_with("flag override")) return "--" + name + " takes no value";
  const CLI::Option* option = command.get_option_no_throw(name);
  const bool repeated = option != nullptr && option->count() > 1;
  return name +
         (repeated ? " was given " + std::to_string(option->count()) + " times" : " needs a value");
}

std::string missing_options(const CLI::App& command) {
  std::string missing;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_required() || option->count() > 0) continue;
    missing += (missing.empty() ? "" : ", ") + shown_name(*option, Names::first);
  }
  return missing;
}

}  // namespace

void add_option(CLI::App& command, const std::string& flag, const std::string& placeholder,
                Need need, const std::string& help,
                const std::function<void(const std::string&)>& store) {
  CLI::Option* option = command.add_option_function<std::string>(flag, store, help);
  option->type_name(placeholder);
  if (need == Need::required) option->required();
}

void add_text(CLI::App& command, const std::string& flag, const std::string& placeholder, Need need,
              const std::string& help, std::string& target) {
  add_option(command, flag, placeholder, need, help, [flag, &target](const std::string& text) {
    if (text.empty()) throw InvalidArgument(flag + ": the value is empty");
    target = text;
  });
}

void add_files(CLI::App& command, const std::string& flag, Need need, const std::string& help,
               std::vector<std::string>& target) {
  CLI::Option* option = command.add_option(flag, target, help);
  option->allow_extra_args(false)->type_name("FILE");
  option->each([flag](const std::string& text) {
    if (text.empty()) throw InvalidArgument(flag + ": the value is empty");
  });
  if (need == Need::required) option->required();
}

void add_flag(CLI::App& command, const std::string& flag, const std::string& help, bool& target) {
  command.add_flag(flag, target, help)->disable_flag_override();  // no --flag=false
}

std::int64_t to_integer(const std::string& flag, const std::string& text, std::int64_t at_least) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, problem] = std::from_chars(text.data(), end, value);
  if (problem == std::errc::result_out_of_range && stopped == end) {
    const char* const side = text[0] == '-' ? "at least " : "at most ";
    throw InvalidArgument(flag + ": expected a whole number of " + side +
                          std::to_string(text[0] == '-' ? at_least : INT64_MAX) + ", found " +
                          quoted(text));
  }
  if (problem != std::errc() || stopped != end || value < at_least) {
    throw InvalidArgument(flag + ": expected a whole number of at least " +
                          std::to_string(at_least) + ", found " + quoted(text));
  }
  return value;
}

std::int64_t to_epochs(const std::string& text) {
  constexpr std::int64_t kMost = 1'000'000'000;
  const std::int64_t epochs = to_integer("--epochs", text, 1);
  SLUICE_CHECK(epochs <= kMost, "--epochs: expected at most " +
                                    format_count(static_cast<std::uint64_t>(kMost)) + ", found " +
                                    quoted(text));
  return epochs;
}

unsigned to_count(const std::string& flag, const std::string& text, unsigned most) {
  const std::int64_t value = to_integer(flag, text, 1);
  SLUICE_CHECK(value <= most,
               flag + ": expected 1 to " + std::to_string(most) + ", found " + quoted(text));
  return static_cast<unsigned>(value);
}

std::uint64_t to_unsigned(const std::string& flag, const std::string& text) {
  if (const auto value = parse_number<std::uint64_t>(text)) return *value;
  throw InvalidArgument(flag + ": expected a whole number from 0 to 18446744073709551615, found " +
                        quoted(text));
}

double to_real(const std::string& flag, const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, problem] = std::from_chars(text.data(), end, value);
  if (problem == std::errc::result_out_of_range && stopped == end)
    throw InvalidArgument(flag + ": the number is too small or too large: " + quoted(text));
  if (problem != std::errc() || stopped != end || !std::isfinite(value)) {
    throw InvalidArgument(flag + ": expected a number, found " + quoted(text));
  }
  return value;
}

std::string help_text(const CLI::App& command) {
  std::string out =
      full_name(command) + ": " + command.get_description() + "\n\n" + usage_line(command);
  std::vector<std::pair<std::string, std::string>> rows;
  for (const CLI::App* sub : command.get_subcommands({})) {
    rows.emplace_back(sub->get_name(), sub->get_description());
  }
  if (!rows.empty()) out += "\ncommands:\n" + two_columns(rows);
  for (const std::string& group : option_groups(command)) {
    rows.clear();
    for (const CLI::Option* option : command.get_options()) {
      if (option->get_group() == group)
        rows.emplace_back(shown_name(*option, Names::all), option->get_description());
    }
    out += "\n" + (group == kUsualGroup ? "options" : group) + ":\n" + two_columns(rows);
  }
  return out + "\nexample:\n  " + command.get_footer() + "\n";
}

std::string usage_message(const CLI::App& root, const CLI::ParseError& error) {
  const CLI::App& command = named_command(root);
  std::string message;
  const std::vector<std::string> extras = root.remaining(true);
  // A mistyped flag leaves its value behind too; the message is about the flag.
  const auto flag = std::find_if(extras.begin(), extras.end(),
                                 [](const std::string& text) { return text.rfind('-', 0) == 0; });
  // A mistyped command leaves its flags behind; the message is about the command.
  const bool named = command.get_subcommands({}).empty();
  if (!extras.empty()) {
    message = unexpected_argument(command, flag == extras.end() || !named ? extras.front() : *flag);
  } else if (dynamic_cast<const CLI::ExcludesError*>(&error) != nullptr) {
    message = "two names of one option, or two options that exclude each other: " +
              std::string(error.what());
  } else if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    message = wrong_number_of_values(command, error);
  } else if (const std::string missing = missing_options(command); !missing.empty()) {
    message = "missing " + missing;
  } else if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    message = "a command is missing";
  } else {
    message = error.what();
  }
  return in_command(command, message) + " (" + full_name(command) + " --help lists what there is)";
}

void check_values(const CLI::App& root, const std::vector<std::string>& arguments) {
  const CLI::App& command = named_command(root);
  const std::vector<std::string> flags = flag_names(command);
  const auto is_flag = [&](const std::string& text) {
    return std::find(flags.begin(), flags.end(), text) != flags.end();
  };
  // The arguments behind them belong to a program that is launched.
  const std::size_t count = arguments.size() - command.remaining_size();
  for (std::size_t i = 0; i < count; ++i) {
    const std::string& argument = arguments[i];
    const std::string name = argument.substr(0, argument.find('='));
    if (!is_flag(name)) continue;
    if (argument == name + "=") throw InvalidArgument(name + ": the value is empty");
    if (argument != name || command.get_option(name)->get_expected_min() == 0) continue;
    ++i;  // its value
    if (i < count && is_flag(arguments[i]))
      throw InvalidArgument(name + " needs a value, and " + quoted(arguments[i]) +
                            " is a flag; if it is the value, write " + name + "=" + arguments[i]);
  }
}

const CLI::App& named_command(const CLI::App& root) {
  const CLI::App* command = &root;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

std::string in_command(const CLI::App& command, const std::string& message) {
  if (command.get_parent() == nullptr) return message;
  const std::string name = full_name(command);
  return name.substr(name.find(' ') + 1) + ": " + message;
}

}  // namespace sluice::cli
