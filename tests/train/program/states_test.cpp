// How states are kept changes where bytes are and how many, and of one format never a result: split
// masters, bf16 moments, and the cache of states on NVMe, beside everything resident.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <thread>

#include "deep_run.hpp"
#include "sluice/config/model_config.hpp"
#include "sluice/config/train_config.hpp"
#include "sluice/models/gpt2_layout.hpp"
#include "sluice/plan/make_plan.hpp"
#include "sluice/plan/plan.hpp"
#include "train_support.hpp"

namespace sluice::test {
namespace {

constexpr int kSteps = 7;
// A model whose weights and states small budgets do not hold.
constexpr const char* kWiderModelJson =
    R"({"model_type": "gpt2", "n_layer": 4, "n_embd": 256, "n_head": 4, "n_positions": 32, "vocab_size": 256})";

Outcome run(TrainFolder& folder, const TrainSetup& setup,
            const std::vector<std::string>& more = {}) {
  return outcome_of(folder, setup, kSteps, more);
}

std::string format_keys(const std::string& master, const std::string& moments) {
  return R"("master": ")" + master + R"(", "moments": ")" + moments + "\", ";
}

TEST(States, EveryFormatIsTheSameOnEveryTier) {
  TrainFolder folder;
  std::vector<std::string> losses;
  for (const std::string master : {"fp32", "split"}) {
    for (const std::string moments : {"fp32", "bf16"}) {
      TrainSetup setup;
      setup.sluice_keys = format_keys(master, moments);
      const Outcome resident = run(folder, setup, kResident);
      losses.push_back(resident.losses.back());
      std::vector<std::pair<const char*, const char*>> placements = {
          {"nvme", "nvme"}, {"cpu", "cpu"}, {"cpu", "none"}};
      // The format with the most parts, and that with the fewest, are tried everywhere.
      if ((master == "split") == (moments == "bf16") || test::usual_or_deep(0, 1) == 1)
        placements.insert(placements.end(), {{"none", "none"},
                                             {"none", "cpu"},
                                             {"cpu", "nvme"},
                                             {"nvme", "none"},
                                             {"nvme", "cpu"}});
      for (const auto& [optimizer, param] : placements) {
        SCOPED_TRACE(master + " master, " + moments + " moments, optimizer " + optimizer +
                     ", param " + param);
        setup.optimizer_device = optimizer;
        setup.param_device = param;
        expect_same(run(folder, setup), resident);
      }
    }
  }
  // They are formats of their own: the weights of each round otherwise.
  for (std::size_t i = 0; i < losses.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(losses[i], losses[j]) << i << ' ' << j;
}

TEST(States, ACacheChangesNoBitAndMovesTheBytesThatThePlanSays) {
  TrainFolder folder;
  for (const double clipping : {0.0, 1.0}) {
    TrainSetup setup;
    setup.clipping = clipping;
    const Outcome resident = run(folder, setup, kResident);
    for (const char* param : {"nvme", "cpu"}) {
      std::uint64_t most_read = std::numeric_limits<std::uint64_t>::max();
      for (const char* share : {"0", "\"50%\"", "\"auto\""}) {
        for (const int every : {1, 3}) {
          SCOPED_TRACE(std::string("cache ") + share + ", param " + param + ", commit every " +
                       std::to_string(every) + ", clipping " + std::to_string(clipping));
          setup.param_device = param;
          setup.sluice_keys = std::string("\"cache_bytes\": ") + share +
                              ", \"commit_every\": " + std::to_string(every) + ", ";
          expect_same(run(folder, setup), resident);
          const auto read = column(folder, "report", "nvme_read");
          const auto written = column(folder, "report", "nvme_write");
          const auto cached = column(folder, "report", "nvme_cached");
          const Json::Value planned = plan_of(folder)["bytes_per_step"];
          for (int step = 1; step <= kSteps; ++step) {
            const std::size_t i = static_cast<std::size_t>(step) - 1;
            const bool commits = step % every == 0 || step == kSteps;
            EXPECT_EQ(read[i], planned["nvme_read"].asString());
            EXPECT_EQ(cached[i], planned["nvme_cached"].asString());
            EXPECT_EQ(written[i],
                      planned[commits ? "nvme_write" : "nvme_write_between_commits"].asString())
                << "step " << step;
          }
          if (every == 1) {
            EXPECT_LT(std::stoull(read[0]), most_read);
            most_read = std::stoull(read[0]);
          }
        }
      }
    }
  }
}

// As a probe would have found on a machine whose drive is slow.
void write_slow_rates(const TrainFolder& folder, const std::string& path) {
  const config::TrainConfig config = config::load_train_config(folder.config());
  const plan::Plan plan = plan::make_plan(config, config::load_model_config(folder.model()),
                                          plan::Placement::configured, plan::probe_machine(config));
  plan::MachineRates rates;
  rates.block.first = {.forward = 0.01, .forward_saving = 0.01, .backward = 0.02};
  rates.read_bytes_per_second = rates.write_bytes_per_second = rates.swap_bytes_per_second = 1e6;
  plan::save_rates(path, plan::rates_key(plan), {rates, "today"});
}

// Bytes that bf16 products of this processor take beyond those of others: fp16 has the same
// tensors.
std::uint64_t more_workspace_bytes(const config::ModelConfig& model, std::int64_t micro_batch) {
  const auto most = [&](DType dtype) {
    std::uint64_t bytes = 0;
    for (std::size_t unit = 0; unit < static_cast<std::size_t>(model.n_layer) + 2; ++unit)
      bytes = std::max(
          bytes, models::unit_workspace(model, unit, static_cast<std::uint64_t>(micro_batch), dtype,
                                        /*threads=*/2)
                     .backward_bytes);
    return bytes;
  };
  return most(DType::bf16) - std::min(most(DType::bf16), most(DType::fp16));
}

TEST(States, APlanByPredictedTimeChangesNoBit) {
  TrainFolder folder;
  write_file(folder.model(), kWiderModelJson);
  TrainSetup setup;
  setup.accumulation = 1;
  const config::ModelConfig model = config::load_model_config(folder.model());
  setup.device_bytes =
      std::to_string((9U << 20U) + more_workspace_bytes(model, setup.micro_batch)) + "B";
  setup.host_bytes = "28MiB";
  folder.set(setup);
  const std::string rates = folder.path("rates.json");
  write_slow_rates(folder, rates);
  write_file(folder.path("none.json"), "");
  const Outcome usual = run(folder, setup, {"--rates", folder.path("none.json")});
  const auto read = column(folder, "report", "nvme_read");
  expect_same(run(folder, setup, {"--rates", rates}), usual);
  EXPECT_NE(folder.report_text("report").find("faster: inputs of units wait in host memory"),
            std::string::npos)
      << folder.report_text("report");
  EXPECT_LT(std::stoull(column(folder, "report", "nvme_read").back()), std::stoull(read.back()));
}

TEST(States, WhatAnEvaluationMovesBelongsToNoStep) {
  TrainFolder folder;
  TrainSetup setup;
  setup.param_device = "nvme";
  folder.set(setup);
  ASSERT_EQ(folder.train("report", 3, {"--eval-fraction", "0.1", "--eval-every", "2"}).exit_code,
            0);
  for (const char* link : {"h2d", "d2h", "nvme_read"}) {
    const auto bytes = column(folder, "report", link);
    ASSERT_EQ(bytes.size(), 3U);
    EXPECT_EQ(bytes[1], bytes[0]) << link;
    EXPECT_EQ(bytes[2], bytes[0]) << link;
  }
}

TEST(States, InputsThatFillNoWholePagesMoveTheBytesThatThePlanSays) {
  TrainFolder folder;
  write_file(
      folder.model(),
      R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 72, "n_head": 4, "n_positions": 10, "vocab_size": 256})");
  TrainSetup setup;
  setup.optimizer_device = setup.param_device = "cpu";
  setup.micro_batch = 3;  // 4,320 bytes an input
  setup.sluice_keys = "\"activations\": \"offload\", ";
  folder.set(setup);
  ASSERT_EQ(folder.train("report", 2).exit_code, 0);
  for (const char* link : {"h2d", "d2h"})
    EXPECT_EQ(column(folder, "report", link).back(),
              plan_of(folder)["bytes_per_step"][link].asString())
        << link;
}

TEST(States, ARunKeepsItsFormat) {
  TrainFolder folder;
  TrainSetup setup;
  setup.sluice_keys = format_keys("fp32", "bf16");
  folder.set(setup);
  ASSERT_EQ(folder.train("whole", 6).exit_code, 0);
  folder.clear_swap();
  ASSERT_EQ(folder.train("report", 3).exit_code, 0);
  setup.sluice_keys = format_keys("split", "bf16");
  folder.set(setup);
  expect_refused(folder.train("report", 6, {"--resume"}), 4, {"\"master\"", "fp32", "split"});
  setup.sluice_keys = format_keys("fp32", "fp32");
  folder.set(setup);
  expect_refused(folder.train("report", 6, {"--resume"}), 4, {"\"moments\"", "fp32", "bf16"});
  // Left to the run; on other tiers and with a cache.
  setup.sluice_keys = "\"cache_bytes\": \"50%\", ";
  setup.param_device = "cpu";
  folder.set(setup);
  const ProgramResult resumed = folder.train("report", 6, {"--resume"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(column(folder, "report", "loss"), column(folder, "whole", "loss"));
}

// The plan of the line that resumes a run is that of the resumed run, and so are its refusals.
TEST(States, APlanThatResumesTakesOverWhatTheRunKeeps) {
  for (const std::string optimizer : {"nvme", "cpu"}) {
    TrainFolder folder;
    TrainSetup setup;
    setup.optimizer_device = optimizer;
    const std::string checkpoints = "\"checkpoint_dir\": \"" + folder.checkpoints() + "\", ";
    setup.sluice_keys =
        checkpoints + format_keys("fp32", "bf16") + "\"micro_batches_per_pass\": 2, ";
    folder.set(setup);
    ASSERT_EQ(folder.train("report", 2).exit_code, 0);
    const Json::Value begun = report_of(folder)["planned_bytes"];
    const auto plan = [&](const std::vector<std::string>& more) {
      std::vector<std::string> line = folder.arguments("plan", 3, more);
      line.front() = "plan";
      return run_sluice(line);
    };
    setup.sluice_keys = checkpoints;
    folder.set(setup);
    const std::vector<std::string> before = folder.files("");
    const ProgramResult resumed = plan({"--resume", "--json"});
    EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_EQ(parse_json(last_line(resumed.out))["planned_bytes"], begun);
    EXPECT_NE(resumed.err.find("--resume: from step 2 in "), std::string::npos) << resumed.err;
    EXPECT_NE(parse_json(last_line(plan({"--json"}).out))["planned_bytes"], begun)
        << "a run of its own has other formats";
    expect_refused(plan({"--resume", "--seed", "7"}), 2, {"was begun with seed"});
    setup.sluice_keys = checkpoints + format_keys("split", "bf16");
    folder.set(setup);
    expect_refused(plan({"--resume"}), 4, {"\"master\"", "fp32", "split"});
    EXPECT_EQ(folder.files(""), before);
    ASSERT_EQ(folder.train("report", 3, {"--resume", "--set", "sluice.master=fp32"}).exit_code, 0);
    EXPECT_EQ(report_of(folder)["planned_bytes"], begun);
    folder.clear_swap();
    const ProgramResult absent = plan({"--resume"});
    EXPECT_EQ(absent.exit_code, 0) << absent.err;
    EXPECT_NE(absent.err.find("nothing has been committed yet"), std::string::npos) << absent.err;
  }
}

TEST(States, ASignalCommitsWhatOnlyTheCacheHas) {
  TrainFolder folder;
  TrainSetup setup;
  setup.param_device = "cpu";
  setup.sluice_keys = "\"cache_bytes\": \"50%\", \"commit_every\": 100000, ";
  folder.set(setup);
  const int many = usual_or_deep(40, 150);
  ASSERT_EQ(folder.train("whole", many).exit_code, 0);
  folder.clear_swap();
  Process program = start_sluice(folder.arguments("report", many));
  ASSERT_TRUE(wait_for_lines(program, folder.path("report") + "/steps.jsonl", 5));
  program.signal(SIGTERM);
  ASSERT_EQ(program.wait(), 143) << "the run ended before the signal";
  const ProgramResult verified = run_sluice({"nvme", "verify", folder.swap()});
  EXPECT_EQ(verified.exit_code, 0) << verified.err;
  const ProgramResult resumed = folder.train("report", many, {"--resume"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(column(folder, "report", "loss"), column(folder, "whole", "loss"));
}

TEST(States, TheReadsOfACheckpointCountInNoStep) {
  TrainFolder folder;
  TrainSetup setup;
  setup.param_device = "cpu";
  setup.sluice_keys =
      "\"checkpoint_dir\": \"" + folder.checkpoints() + "\", \"checkpoint_every\": 1, ";
  folder.set(setup);
  ASSERT_EQ(folder.train("report", 4).exit_code, 0);
  ASSERT_EQ(folder.files("checkpoints").empty(), false);
  for (const char* link : {"nvme_read", "nvme_write"})
    for (const std::string& of_step : column(folder, "report", link))
      EXPECT_EQ(of_step, plan_of(folder)["bytes_per_step"][link].asString()) << link;
}

TEST(States, ACacheThatHostMemoryHasNoRoomForIsCutAndSaysSo) {
  TrainFolder folder;
  write_file(folder.model(), kWiderModelJson);
  TrainSetup setup;
  setup.sluice_keys = "\"cache_bytes\": \"10GiB\", ";
  setup.param_device = "cpu";
  setup.host_bytes = "40MiB";
  folder.set(setup);
  const ProgramResult result = folder.train("report", 1);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(folder.report_text("report").find("10.0 GiB were asked for"), std::string::npos);
  setup.sluice_keys += "\"strict\": true, ";
  folder.set(setup);
  folder.clear_swap();
  expect_refused(folder.train("report", 1), 3, {"strict", "cache"});
}

// The bytes that were written are in no file that anybody could open again.
TEST(RemovedFiles, ASlotFileRemovedDuringTheRunIsAnErrorAtTheNextCommit) {
  TrainFolder folder;
  folder.set({});
  Process program = start_sluice(folder.arguments("report", 100000));
  ASSERT_TRUE(wait_for_lines(program, folder.path("report") + "/steps.jsonl", 3));
  std::filesystem::remove(folder.swap() + "/states.1.swap");
  EXPECT_EQ(program.wait(), 4);
}

TEST(RemovedFiles, ASwapDirectoryThatWentDuringTheRunIsSaidToBeGone) {
  TrainFolder folder;
  folder.set({});
  std::atomic<bool> ended{false};
  std::thread remover([&] {
    while (!ended && line_count(folder.path("report") + "/steps.jsonl") < 3)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // polls another process
    // All at once: files come and go there meanwhile.
    std::filesystem::rename(folder.swap(), folder.path("away"));
  });
  const ProgramResult run = run_sluice(folder.arguments("report", 100000));
  ended = true;
  remover.join();
  expect_refused(run, 4,
                 {"; " + folder.swap() + ", to which step ", " was committed, is gone. ",
                  "otherwise start again", "removed or replaced"});
}

}  // namespace
}  // namespace sluice::test
