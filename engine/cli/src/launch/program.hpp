#pragma once
// The program of a rank. Thread-safe: free functions without state; PATH and PYTHON_EXEC are read.

#include <string>
#include <vector>

#include "command/arguments.hpp"

namespace sluice::cli {

// Path of an executable that PATH has; empty: none.
std::string find_in_path(const std::string& name);

// The command line that a rank executes. A module, and a program that ends in .py, are run by
// PYTHON_EXEC, else the `python` of PATH, else `python3`, unbuffered. `sluice` without a folder is
// this very program.
std::vector<std::string> program_line(const LaunchArguments& arguments);

// PROGRAM is a Python script or module.
bool is_python(const LaunchArguments& arguments);
// PROGRAM is `sluice train`, whose ranks join by MPI.
bool is_sluice_train(const LaunchArguments& arguments);

// This program's own file.
std::string own_path();

}  // namespace sluice::cli
