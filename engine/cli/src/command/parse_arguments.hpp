#pragma once
// From argv to the values of arguments.hpp. Thread-safe: a free function without state.

#include <string>
#include <vector>

#include "command/arguments.hpp"

namespace sluice::cli {

// `arguments` without the program's name. Throws InvalidArgument with one message that names the
// command, the flag and, for a flag or command that does not exist, the nearest one.
Invocation parse_arguments(const std::vector<std::string>& arguments);

}  // namespace sluice::cli
