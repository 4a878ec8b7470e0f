#pragma once
// Runs a program to its end and collects the output.
// Thread-compatible: callers synchronise.

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "file_text.hpp"
#include "temp_dir.hpp"

namespace sluice::test {

struct ProgramResult {
  int exit_code = -1;  // -1: killed by a signal
  std::string out;
  std::string err;
  double cpu_seconds = 0;  // CPU time of the program, independent of the machine's load
};

using Environment = std::vector<std::pair<std::string, std::string>>;

// `before` runs in the child before the program is executed: it sets limits (in_child.hpp).
inline ProgramResult run_program(std::vector<std::string> argv, const Environment& environment = {},
                                 const std::function<void()>& before = {}) {
  const TempDir directory;
  const std::string out = directory.file("out");
  const std::string err = directory.file("err");
  const pid_t child = ::fork();
  if (child == -1) throw std::runtime_error("fork");
  if (child == 0) {
    const auto redirect = [](const std::string& path, int to) {
      ::dup2(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), to);
    };
    redirect(out, STDOUT_FILENO);
    redirect(err, STDERR_FILENO);
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> pointers;
    pointers.reserve(argv.size() + 1);
    for (std::string& argument : argv) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    if (before) before();
    ::execv(pointers[0], pointers.data());
    ::_exit(127);
  }
  int status = 0;
  rusage usage = {};
  if (::wait4(child, &status, 0, &usage) != child) throw std::runtime_error("wait4");
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, file_text(out), file_text(err),
          seconds(usage.ru_utime) + seconds(usage.ru_stime)};
}

// The built program. SLUICE_TEST_PROGRAM names another one when the tests run in another place.
inline std::string sluice_program() {
  const char* other = std::getenv("SLUICE_TEST_PROGRAM");
  return other != nullptr ? other : SLUICE_PROGRAM;
}

// Runs `sluice` with these arguments.
inline ProgramResult run_sluice(std::vector<std::string> arguments,
                                const Environment& environment = {},
                                const std::function<void()>& before = {}) {
  arguments.insert(arguments.begin(), sluice_program());
  return run_program(std::move(arguments), environment, before);
}

inline std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

// A small model; its plan and its files take no time.
inline constexpr const char* kModelJson =
    R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 32, "vocab_size": 256})";

// All bytes stay on device and host, so the drive is not written.
inline constexpr const char* kConfigJson =
    R"({"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.0004}},
        "bf16": {"enabled": true}, "zero_optimization": {"stage": 3}})";

}  // namespace sluice::test
