#pragma once
// Runs `sluice train` on a small model in a folder of its own and reads what it reports.
// Thread-compatible: callers synchronise.

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "cli/json_text.hpp"
#include "cli/run_program.hpp"

namespace sluice::test {

#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kUnderAddressSanitizer = true;
#else
inline constexpr bool kUnderAddressSanitizer = false;
#endif

// The configuration of one run; what is empty is left out.
struct TrainSetup {
  std::string optimizer_device = "nvme";
  std::string param_device = "nvme";
  std::string device_bytes = "64MiB";
  std::string host_bytes = "40MiB";
  std::string sluice_keys;  // more keys of the section "sluice", each ending with a comma
  std::string zero_keys;    // more keys of zero_optimization, each ending with a comma
  std::string more_keys;    // more keys of the whole file, each ending with a comma
  std::string scheduler = R"({"type": "WarmupLR", "params": {"warmup_num_steps": 10}})";
  int micro_batch = 2;
  int accumulation = 4;
  bool bf16 = true;
  double clipping = 1.0;
  std::string optimizer = R"("type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1})";
};

// `swap`: a directory, or the JSON text of a list of them.
inline std::string offload_json(const std::string& device, const std::string& swap) {
  std::string text = R"({"device": ")" + device + "\"";
  const std::string path = swap.starts_with("[") ? swap : "\"" + swap + "\"";
  if (device == "nvme") text += R"(, "nvme_path": )" + path;
  return text + "}";
}

inline std::string config_json(const TrainSetup& setup, const std::string& swap) {
  std::ostringstream text;
  text << "{" << setup.more_keys << "\"train_micro_batch_size_per_gpu\": " << setup.micro_batch
       << ", \"gradient_accumulation_steps\": " << setup.accumulation << ", \"optimizer\": {"
       << setup.optimizer << "}, \"scheduler\": " << setup.scheduler
       << ", \"gradient_clipping\": " << setup.clipping
       << ", \"bf16\": {\"enabled\": " << (setup.bf16 ? "true" : "false") << "}"
       << ", \"zero_optimization\": {" << setup.zero_keys
       << "\"stage\": 3, \"offload_optimizer\": " << offload_json(setup.optimizer_device, swap)
       << ", \"offload_param\": " << offload_json(setup.param_device, swap) << "}"
       << ", \"sluice\": {" << setup.sluice_keys << "\"device_bytes\": \"" << setup.device_bytes
       << "\", \"host_bytes\": \"" << setup.host_bytes << "\"}}";
  return text.str();
}

// Text with some structure, the same on every machine.
inline std::string sample_text(std::size_t size) {
  static const char* const kWords[] = {"shard ", "gather ", "tile ",  "moment ", "the ", "step\n",
                                       "waits ", "for ",    "bytes ", "of ",     "a ",   "drive. "};
  std::string text;
  std::uint64_t state = 12345;
  while (text.size() < size) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    text += kWords[(state >> 33U) % std::size(kWords)];
  }
  text.resize(size);
  return text;
}

inline constexpr const char* kTrainModelJson =
    R"({"model_type": "gpt2", "n_layer": 3, "n_embd": 64, "n_head": 4, "n_positions": 32, "vocab_size": 256})";

// A folder with data, model, swap directory and checkpoints; runs share it one after the other.
class TrainFolder {
 public:
  TrainFolder() {
    write_file(data(), sample_text(60000));
    write_file(model(), kTrainModelJson);
    clear_swap();
  }
  std::string path(const std::string& name) const { return directory_.file(name); }
  std::string data() const { return path("data.txt"); }
  std::string model() const { return path("model.json"); }
  std::string config() const { return path("ds.json"); }
  std::string swap() const { return path("swap"); }
  std::string checkpoints() const { return path("checkpoints"); }
  void clear_swap() {
    std::filesystem::remove_all(swap());
    std::filesystem::remove_all(checkpoints());
    std::filesystem::create_directory(swap());
  }
  void set(const TrainSetup& setup) { write_file(config(), config_json(setup, swap())); }
  // Two directories to stripe over, empty.
  void set_striped(const TrainSetup& setup) {
    clear_swap();
    std::filesystem::remove_all(path("swap2"));
    std::filesystem::create_directory(path("swap2"));
    write_file(config(), config_json(setup, "[\"" + swap() + "\", \"" + path("swap2") + "\"]"));
  }

  std::vector<std::string> arguments(const std::string& report, int steps,
                                     const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"train",    "--config",  config(),
                                    "--model",  model(),     "--data",
                                    data(),     "--steps",   std::to_string(steps),
                                    "--report", path(report)};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  ProgramResult train(const std::string& report, int steps,
                      const std::vector<std::string>& more = {}) const {
    return run_sluice(arguments(report, steps, more));
  }
  std::string report_text(const std::string& report) const {
    return file_text(path(report) + "/report.json");
  }
  std::vector<std::string> files(const std::string& name) const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path(name))) {
      found.push_back(entry.path().string());
    }
    std::sort(found.begin(), found.end());
    return found;
  }

 private:
  TempDir directory_;
};

// The exit code, and that the message has each of `parts`.
inline void expect_refused(const ProgramResult& result, int exit_code,
                           const std::vector<std::string>& parts) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  for (const std::string& part : parts) {
    EXPECT_NE(result.err.find(part), std::string::npos)
        << "no \"" << part << "\" in: " << result.err;
  }
  EXPECT_EQ(result.err.find("terminate called"), std::string::npos) << result.err;
}

inline Json::Value report_of(const TrainFolder& folder, const std::string& report = "report") {
  return parse_json(folder.report_text(report));
}

// The output of `sluice plan --json`.
inline Json::Value plan_of(const TrainFolder& folder) {
  const ProgramResult plan =
      run_sluice({"plan", "--config", folder.config(), "--model", folder.model(), "--json"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  return parse_json(last_line(plan.out));
}

// The text of one number in each line of steps.jsonl: equal text is equal bits.
inline std::vector<std::string> column(const TrainFolder& folder, const std::string& report,
                                       const std::string& key) {
  std::ifstream file(folder.path(report) + "/steps.jsonl");
  std::vector<std::string> values;
  const std::string mark = "\"" + key + "\":";
  for (std::string line; std::getline(file, line);) {
    const auto at = line.find(mark);
    if (at == std::string::npos) continue;
    const auto begin = at + mark.size();
    values.push_back(line.substr(begin, line.find_first_of(",}", begin) - begin));
  }
  return values;
}

// The exported weights of a run, or of the newest of its checkpoints.
inline std::string exported(const TrainFolder& folder, const std::string& run) {
  const std::string out = folder.path("weights.safetensors");
  const ProgramResult result = run_sluice({"export", run, "--out", out});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return file_text(out);
}

// Result of a run.
struct Outcome {
  int steps;
  std::vector<std::string> losses;
  std::vector<std::string> norms;
  std::string weights;
};

inline const std::vector<std::string> kResident = {"--placement", "resident"};

// A run from the beginning, `more` and `environment` for the program: of states that are not on
// NVMe the weights come from a checkpoint.
inline Outcome outcome_of(TrainFolder& folder, const TrainSetup& setup, int steps,
                          const std::vector<std::string>& more = {},
                          const Environment& environment = {}) {
  folder.clear_swap();
  TrainSetup with_checkpoint = setup;
  with_checkpoint.sluice_keys += "\"checkpoint_dir\": \"" + folder.checkpoints() + "\", ";
  folder.set(with_checkpoint);
  const ProgramResult result = run_sluice(folder.arguments("report", steps, more), environment);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const bool on_drive = setup.optimizer_device == "nvme" && more != kResident;
  return {steps, column(folder, "report", "loss"), column(folder, "report", "grad_norm"),
          exported(folder, on_drive ? folder.swap() : folder.checkpoints())};
}

inline void expect_same(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.losses.size(), static_cast<std::size_t>(a.steps));
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  EXPECT_TRUE(a.weights == b.weights) << "the exported weights differ";
}

// Starts the program without its output.
inline Process start_sluice(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), sluice_program());
  return Process(std::move(arguments));
}

// Starts the program, sends `signal` after `delay`, returns its exit code (negative: the signal
// that killed it).
inline int run_and_signal(const std::vector<std::string>& arguments,
                          std::chrono::milliseconds delay, int signal) {
  Process process = start_sluice(arguments);
  std::this_thread::sleep_for(delay);  // the moment of the signal is what is varied
  process.signal(signal);
  return process.wait();
}

inline int line_count(const std::string& path) {
  const std::string text = std::filesystem::exists(path) ? file_text(path) : "";
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

// Blocks until `steps_file` has `lines` lines. Returns false when the program ended before.
inline bool wait_for_lines(Process& process, const std::string& steps_file, int lines) {
  while (line_count(steps_file) < lines) {
    if (!process.runs()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // polls another process
  }
  return true;
}

// Starts the program and signals it `delay` after `steps_file` has `lines` lines. Returns whether
// it was still running.
inline bool kill_after_line(const std::vector<std::string>& arguments,
                            const std::string& steps_file, int lines,
                            std::chrono::milliseconds delay, int signal = SIGKILL) {
  Process process = start_sluice(arguments);
  if (!wait_for_lines(process, steps_file, lines)) return false;
  std::this_thread::sleep_for(delay);
  process.signal(signal);
  const int exit_code = process.wait();
  return exit_code == -signal || exit_code == 128 + signal;
}

}  // namespace sluice::test
