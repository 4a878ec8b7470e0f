#include "launch/program.hpp"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string_view>

namespace sluice::cli {

namespace fs = std::filesystem;

namespace {

// As torchrun chooses it: PYTHON_EXEC, which the Python package sets to its own interpreter.
std::string interpreter() {
  const char* const named = std::getenv("PYTHON_EXEC");
  if (named != nullptr && *named != '\0') return named;
  return find_in_path("python").empty() ? "python3" : "python";
}

}  // namespace

std::string find_in_path(const std::string& name) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string file = (fs::path(folder.empty() ? "." : folder) / name).string();
    std::error_code error;
    if (fs::is_regular_file(file, error) && ::access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

std::string own_path() {
  std::error_code error;
  const fs::path path = fs::read_symlink("/proc/self/exe", error);
  return error ? "sluice" : path.string();
}

bool is_python(const LaunchArguments& arguments) {
  constexpr std::string_view kScript = ".py";
  const std::string& program = arguments.program.front();
  const bool is_script =
      program.size() > kScript.size() &&
      program.compare(program.size() - kScript.size(), kScript.size(), kScript) == 0;
  return arguments.is_module || (is_script && !arguments.no_python);
}

bool is_sluice_train(const LaunchArguments& arguments) {
  return fs::path(arguments.program.front()).filename() == "sluice" &&
         arguments.program.size() > 1 && arguments.program[1] == "train";
}

std::vector<std::string> program_line(const LaunchArguments& arguments) {
  std::vector<std::string> line = arguments.program;
  if (is_python(arguments)) {
    std::vector<std::string> before = {interpreter(), "-u"};
    if (arguments.is_module) before.emplace_back("-m");
    line.insert(line.begin(), before.begin(), before.end());
  } else if (line.front() == "sluice") {
    line.front() = own_path();
  }
  return line;
}

}  // namespace sluice::cli
