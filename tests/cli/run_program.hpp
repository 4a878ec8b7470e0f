#pragma once
// Runs a program to its end and collects the output.
// Thread-compatible: callers synchronise.

#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "file_text.hpp"
#include "process.hpp"
#include "temp_dir.hpp"

namespace sluice::test {

struct ProgramResult {
  int exit_code = -1;  // negative: the signal that killed it
  std::string out;
  std::string err;
  double cpu_seconds = 0;  // CPU time of the program, independent of the machine's load
};

// `before` runs in the child before the program is executed: it sets limits (in_child.hpp).
inline ProgramResult run_program(std::vector<std::string> argv, const Environment& environment = {},
                                 const std::function<void()>& before = {}) {
  const TempDir directory;
  const std::string out = directory.file("out");
  const std::string err = directory.file("err");
  Process process(std::move(argv), {environment, out, err, before});
  const int exit_code = process.wait();
  return {exit_code, file_text(out), file_text(err), process.cpu_seconds()};
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
