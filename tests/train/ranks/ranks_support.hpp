#pragma once
// Runs `sluice train` over ranks that mpirun starts on this machine.
// Thread-compatible: callers synchronise.

#include <gtest/gtest.h>
#include <json/json.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "cli/run_program.hpp"

namespace sluice::test {

// The model and the way in which one run trains it.
struct RanksCase {
  int ranks = 2;
  int stage = 3;
  std::string offload = "none";  // none, cpu, nvme
  int accumulation = 1;          // of each rank
  double clipping = 0;
  bool overlap = true;
  bool bf16 = true;
  bool tied = false;
  bool exported = false;         // the last state can be exported, wherever the states are
  std::string sluice_keys = {};  // more of the section, beginning with a comma
  std::string keys = {};         // more of the top level, each with a comma behind it

  std::string name() const {
    return std::to_string(ranks) + " ranks, stage " + std::to_string(stage) + ", " + offload +
           ", accumulation " + std::to_string(accumulation) + ", clipping " +
           std::to_string(clipping) + (overlap ? ", overlap" : "") + (bf16 ? ", bf16" : ", fp32") +
           (tied ? ", tied" : "");
  }
};

// A folder with the files of runs.
class RanksRun {
 public:
  RanksRun() {
    std::string text;
    for (int i = 0; i < 4096; ++i) text += static_cast<char>('a' + (i * i + i / 7) % 26);
    write_file(directory_.file("text"), text);
  }
  std::string file(const std::string& name) const { return directory_.file(name); }

  // The arguments of `sluice` after writing its files under `name`.
  std::vector<std::string> arguments(const RanksCase& of, const std::string& name,
                                     int steps) const {
    write_file(file(name + ".json"), config_of(of, name));
    write_file(file(name + ".model.json"), model_of(of));
    return {"train",
            "--config",
            file(name + ".json"),
            "--model",
            file(name + ".model.json"),
            "--data",
            file("text"),
            "--steps",
            std::to_string(steps),
            "--report",
            file(name + ".report"),
            "--eval-fraction",
            "0.1"};
  }
  // `wrapper`: words before the program, run by each rank.
  static std::vector<std::string> line(int ranks, const std::vector<std::string>& arguments,
                                       const std::vector<std::string>& wrapper = {}) {
    std::vector<std::string> all;
    if (ranks > 1 || !wrapper.empty())
      all = {SLUICE_MPIRUN, "--allow-run-as-root", "--oversubscribe", "-n", std::to_string(ranks)};
    all.insert(all.end(), wrapper.begin(), wrapper.end());
    all.push_back(sluice_program());
    all.insert(all.end(), arguments.begin(), arguments.end());
    return all;
  }
  ProgramResult train(const RanksCase& of, const std::string& name, int steps) const {
    return run_program(line(of.ranks, arguments(of, name, steps)));
  }
  // The exported weights of a run that can be exported: its file, byte for byte.
  std::string weights(const RanksCase& of, const std::string& name) const {
    const std::string out = file(name + ".safetensors");
    const std::string states = file(name + (of.offload == "nvme" ? ".nvme" : ".checkpoints"));
    const ProgramResult result = run_sluice({"export", states, "--out", out});
    EXPECT_EQ(result.exit_code, 0) << of.name() << "\n" << result.err;
    return file_text(out);
  }
  // A value of each line of steps.jsonl, as written, with the digits of all bits.
  std::vector<std::string> values(const std::string& name, const std::string& key) const {
    std::istringstream lines(file_text(file(name + ".report/steps.jsonl")));
    std::vector<std::string> found;
    for (std::string one; std::getline(lines, one);) {
      const std::string quoted = "\"" + key + "\":";
      const std::size_t begin = one.find(quoted);
      if (begin == std::string::npos) continue;
      const std::size_t from = begin + quoted.size();
      found.push_back(one.substr(from, one.find_first_of(",}", from) - from));
    }
    return found;
  }
  Json::Value report(const std::string& name) const {
    Json::Value root;
    std::istringstream(file_text(file(name + ".report/report.json"))) >> root;
    return root;
  }

 private:
  std::string config_of(const RanksCase& of, const std::string& name) const {
    std::string zero = R"({"stage": )" + std::to_string(of.stage);
    if (of.offload != "none") {
      std::string place = R"({"device": ")" + of.offload + "\"";
      if (of.offload == "nvme") {
        std::filesystem::create_directories(file(name + ".nvme"));
        place += R"(, "nvme_path": ")" + file(name + ".nvme") + "\"";
      }
      place += "}";
      zero += R"(, "offload_optimizer": )" + place;
      if (of.stage == 3) zero += R"(, "offload_param": )" + place;
    }
    std::string more = of.sluice_keys;
    if (of.exported && of.offload != "nvme")
      more += R"(, "checkpoint_dir": ")" + file(name + ".checkpoints") + "\"";
    return "{" + of.keys +
           R"("train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )" +
           std::to_string(of.accumulation) + R"(, "gradient_clipping": )" +
           std::to_string(of.clipping) +
           R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}},
               "bf16": {"enabled": )" +
           (of.bf16 ? "true" : "false") + R"(}, "zero_optimization": )" + zero +
           R"(}, "sluice": {"device": "host", "device_bytes": "64MiB", "host_bytes": "64MiB",
               "threads": {"compute": 1, "optimizer": 1, "io": 1}, "overlap": )" +
           (of.overlap ? "true" : "false") + more + "}}";
  }
  static std::string model_of(const RanksCase& of) {
    return R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 16,
               "vocab_size": 256, "resid_pdrop": 0.1, "tie_word_embeddings": )" +
           std::string(of.tied ? "true" : "false") + "}";
  }
  TempDir directory_;
};

// Starts ranks whose output goes to `output`. They take each other for silent after 5 seconds.
inline Process start_ranks(std::vector<std::string> line, const std::string& output) {
  return Process(std::move(line), {{{"SLUICE_RANK_TIMEOUT", "5"}}, output, output});
}

}  // namespace sluice::test
