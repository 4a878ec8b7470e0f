#pragma once
// From argv to the values of arguments.hpp. Thread-safe: a free function without state.

#include <string>
#include <vector>

#include "command/arguments.hpp"

namespace sluice::cli {

// `arguments` excludes the program's name. Throws InvalidArgument with one message that names the
// command and the flag. For an unknown flag or command the message adds the nearest known one.
Invocation parse_arguments(const std::vector<std::string>& arguments);

}  // namespace sluice::cli
