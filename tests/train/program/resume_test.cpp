// Killed at any moment, a run resumes at its last committed step with nothing lost.

#include <gtest/gtest.h>

#include <random>

#include "deep_run.hpp"
#include "train_support.hpp"

namespace sluice::test {
namespace {

constexpr int kSteps = 60;
using std::chrono::milliseconds;

struct Expected {
  std::vector<std::string> losses;
  std::vector<std::string> files;
  std::string weights;
};

std::vector<std::string> names(const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  for (const std::string& path : paths)
    names.push_back(std::filesystem::path(path).filename().string());
  return names;
}

Expected uninterrupted(const TrainSetup& setup, int steps) {
  TrainFolder folder;
  folder.set(setup);
  const ProgramResult result = folder.train("report", steps);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return {column(folder, "report", "loss"), names(folder.files("swap")),
          exported(folder, folder.swap())};
}

// Kills `kills` runs, spread over the steps: each a random moment after its share of the steps has
// been taken, and after every third one more while it starts.
void kill_and_resume(const TrainSetup& setup, int steps, int kills, unsigned seed) {
  const Expected expected = uninterrupted(setup, steps);
  TrainFolder folder;
  folder.set(setup);
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> in_step(0, 40);
  std::uniform_int_distribution<int> in_start(1, 600);
  const auto arguments = folder.arguments("report", steps, {"--resume"});
  for (int i = 0; i < kills; ++i) {
    const int until = 1 + i * (steps - 10) / kills;
    ASSERT_TRUE(kill_after_line(arguments, folder.path("report") + "/steps.jsonl", until,
                                milliseconds(in_step(random))))
        << "kill " << i << " came after the end of the run";
    if (i % 3 == 0) run_and_signal(arguments, milliseconds(in_start(random)), SIGKILL);
  }
  const ProgramResult last = folder.train("report", steps, {"--resume"});
  ASSERT_EQ(last.exit_code, 0) << last.err;
  EXPECT_EQ(column(folder, "report", "loss"), expected.losses);
  EXPECT_EQ(names(folder.files("swap")), expected.files);
  EXPECT_TRUE(exported(folder, folder.swap()) == expected.weights);
}

TEST(Resume, AfterKillsAtRandomMomentsTheLossesAreThoseOfAnUninterruptedRun) {
  const int kills = usual_or_deep(10, 25);
  kill_and_resume({}, 8 * kills, kills, 20261121);
}

// `sluice report` would show its memory, limits and choices for those of the killed run.
TEST(Resume, AKilledRunHasNoReportOfTheRunBefore) {
  TrainFolder folder;
  folder.set({});
  ASSERT_EQ(folder.train("report", 2).exit_code, 0);
  const std::string report = folder.path("report") + "/report.json";
  ASSERT_TRUE(std::filesystem::exists(report));
  const auto arguments = folder.arguments("report", 1000, {"--resume"});
  const std::string lines = folder.path("report") + "/steps.jsonl";
  ASSERT_TRUE(kill_after_line(arguments, lines, 5, milliseconds(0)));
  EXPECT_FALSE(std::filesystem::exists(report));
}

TEST(Resume, HoldsWithACommitEveryThirdStepAndSpilledGradients) {
  TrainSetup setup;
  setup.sluice_keys = "\"commit_every\": 3, ";
  setup.host_bytes = "2720KiB";
  kill_and_resume(setup, kSteps, 6, 7);
}

TEST(Resume, HoldsWithACacheThatIsWrittenAtCommits) {
  TrainSetup setup;
  setup.param_device = "cpu";
  setup.sluice_keys = "\"commit_every\": 3, \"cache_bytes\": \"50%\", ";
  kill_and_resume(setup, kSteps, 6, 9);
}

TEST(Resume, ATerminatedRunCommitsItsStepAndSaysHowToGoOn) {
  const Expected expected = uninterrupted({}, kSteps);
  TrainFolder folder;
  folder.set({});
  const int code = run_and_signal(folder.arguments("report", kSteps), milliseconds(1500), SIGTERM);
  // On a very fast machine the run may have ended before.
  ASSERT_TRUE(code == 143 || code == 0) << code;
  const ProgramResult rest = folder.train("report", kSteps, {"--resume"});
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_EQ(column(folder, "report", "loss"), expected.losses);
  EXPECT_EQ(names(folder.files("swap")), expected.files);
}

// Also where the signal comes in a forward, while the step before is not committed yet.
TEST(Resume, ATerminatedRunWithStatesInMemoryWritesOneCheckpoint) {
  for (int i = 0; i < 4; ++i) {
    TrainFolder folder;
    TrainSetup setup;
    setup.optimizer_device = setup.param_device = "cpu";
    setup.sluice_keys = "\"checkpoint_dir\": \"" + folder.checkpoints() + "\", \"keep\": 3, ";
    folder.set(setup);
    ASSERT_TRUE(kill_after_line(folder.arguments("report", 10 * kSteps),
                                folder.path("report") + "/steps.jsonl", 5, milliseconds(3 * i),
                                SIGTERM));
    int checkpoints = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder.checkpoints()))
      if (entry.is_directory()) ++checkpoints;
    EXPECT_EQ(checkpoints, 1) << "signal " << i;
  }
}

TEST(Resume, WithStatesInMemoryGoesOnFromTheNewestCheckpoint) {
  TrainFolder folder;
  TrainSetup setup;
  setup.optimizer_device = setup.param_device = "cpu";
  setup.sluice_keys = "\"checkpoint_dir\": \"" + folder.checkpoints() +
                      "\", \"checkpoint_every\": 5, \"keep\": 2, ";
  folder.set(setup);
  ASSERT_EQ(folder.train("whole", 20).exit_code, 0);
  folder.clear_swap();
  ASSERT_EQ(folder.train("parts", 12).exit_code, 0);
  const ProgramResult rest = folder.train("parts", 20, {"--resume"});
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_EQ(column(folder, "parts", "loss"), column(folder, "whole", "loss"));
  EXPECT_NE(folder.report_text("parts").find("\"steps\":8,"), std::string::npos)
      << folder.report_text("parts");
  EXPECT_EQ(names(folder.files("checkpoints")).size(), 1 + 2 * 4U)
      << "a lock, and two checkpoints of a folder and three files each";
}

TEST(Resume, StatesThatSpilledFromHostMemoryAreFoundWhereThePlanPutThem) {
  TrainSetup setup;
  setup.optimizer_device = "cpu";
  setup.host_bytes = "20MiB";
  setup.device_bytes = "32MiB";
  TrainFolder folder;
  write_file(
      folder.model(),
      R"({"model_type": "gpt2", "n_layer": 6, "n_embd": 192, "n_head": 4, "n_positions": 32, "vocab_size": 256})");
  // The tightest budget that fits: every unit's states have spilled.
  for (int kib = 8 * 1024; kib < 64 * 1024; kib += 64) {
    setup.host_bytes = std::to_string(kib) + "KiB";
    folder.set(setup);
    const ProgramResult plan =
        run_sluice({"plan", "--config", folder.config(), "--model", folder.model(), "--json"});
    if (plan.exit_code == 0) break;
  }
  const ProgramResult first = folder.train("report", 2);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  ASSERT_TRUE(std::filesystem::exists(folder.swap() + "/manifest.json")) << "not all have spilled";
  const ProgramResult rest = folder.train("report", 4, {"--resume"});
  EXPECT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_EQ(column(folder, "report", "loss").size(), 4U);
}

TEST(Resume, WithoutTheOffloadThatTheRunWasBegunWithIsRefused) {
  TrainFolder folder;
  folder.set({});
  ASSERT_EQ(folder.train("report", 3).exit_code, 0);
  TrainSetup setup;
  setup.optimizer_device = "cpu";
  folder.set(setup);
  const ProgramResult result = folder.train("report", 4, {"--resume"});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_NE(result.err.find(folder.swap()), std::string::npos) << result.err;
  EXPECT_EQ(column(folder, "report", "loss").size(), 3U) << "the report was not touched";
}

TEST(Resume, WithOtherSettingsThanItWasBegunWithSaysWhich) {
  TrainFolder folder;
  TrainSetup setup;
  folder.set(setup);
  ASSERT_EQ(folder.train("report", 2).exit_code, 0);
  const ProgramResult same = folder.train("report", 3, {"--resume"});
  EXPECT_EQ(same.exit_code, 0) << same.err;
  EXPECT_EQ(same.err.find("resumed with another"), std::string::npos) << same.err;

  write_file(folder.data(), sample_text(50000));
  setup.accumulation = 3;
  setup.clipping = 0.5;
  folder.set(setup);
  const std::string model = kTrainModelJson;
  write_file(folder.model(), "{\"resid_pdrop\": 0.25, " + model.substr(model.find('{') + 1));
  const ProgramResult other =
      folder.train("report", 4, {"--resume", "--eval-fraction", "0.1", "--init", folder.data()});
  EXPECT_EQ(other.exit_code, 0) << other.err;
  for (const char* part :
       {"another batch: was micro-batches of 2, 4 a step; is micro-batches of 2, 3 a step",
        "another gradient clipping: was 1; is 0.5",
        "other held-out data: was nothing; is 10 % of the training data",
        "is 0 of embeddings, 0 of attention, 0.25 of residuals",
        "another dropout: was 0 of embeddings, 0 of attention, 0 of residuals",
        "other training data: was 60,000 tokens", "is not read"}) {
    EXPECT_NE(other.err.find(part), std::string::npos) << part << "\n" << other.err;
  }
  EXPECT_EQ(other.err.find("another learning rate"), std::string::npos) << other.err;

  setup.clipping = 0.25;
  setup.sluice_keys = "\"strict\": true, ";
  folder.set(setup);
  const ProgramResult strict = folder.train("report", 5, {"--resume"});
  EXPECT_EQ(strict.exit_code, 2);
  EXPECT_NE(strict.err.find("gradient clipping: was 0.5; is 0.25"), std::string::npos)
      << strict.err;
  EXPECT_EQ(column(folder, "report", "loss").size(), 4U);
}

TEST(Resume, GoesOnWithItsNumberOfMicroBatchesPerPass) {
  TrainFolder folder;
  TrainSetup setup;
  setup.sluice_keys = "\"micro_batches_per_pass\": 1, \"last_pass_micro_batches\": 2, ";
  folder.set(setup);
  ASSERT_EQ(folder.train("report", 2).exit_code, 0);
  setup.sluice_keys = "\"strict\": true, ";
  folder.set(setup);
  const ProgramResult kept = folder.train("report", 3, {"--resume"});
  EXPECT_EQ(kept.exit_code, 0) << kept.err;
  EXPECT_NE(kept.err.find("micro_batches_per_pass: 1, 2 in the last pass, as the run "
                          "was begun"),
            std::string::npos)
      << kept.err;
  setup.sluice_keys = "\"micro_batches_per_pass\": 4, \"strict\": true, ";
  folder.set(setup);
  const ProgramResult refused = folder.train("report", 4, {"--resume"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("another number of micro-batches per pass: was 1; is 4"),
            std::string::npos)
      << refused.err;
}

TEST(Resume, WithNothingCommittedBeginsAnewAndSaysSo) {
  TrainFolder folder;
  folder.set({});
  const ProgramResult result = folder.train("report", 2, {"--resume"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE((result.err + result.out).find("nothing has been committed yet"), std::string::npos)
      << result.err;
}

TEST(Resume, OfARunWhoseStateIsElsewhereSaysSo) {
  TrainFolder folder;
  TrainSetup setup;
  folder.set(setup);
  ASSERT_EQ(folder.train("report", 2).exit_code, 0);
  setup.optimizer_device = setup.param_device = "cpu";
  folder.set(setup);
  const ProgramResult result = folder.train("report", 1, {"--resume"});
  EXPECT_EQ(result.exit_code, 0);
  for (const char* part :
       {"warning: --resume (in Python: resume=True; in a C++ loop: EngineOptions::resume): the "
        "configuration names no directory of states: the run begins at step 1",
        "/report.json is of a run that committed step 2, and no directory of this configuration "
        "has its state"})
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
}

// As docs/durability.md says it.
TEST(Resume, GoesToAnotherTierAndBackByCheckpoints) {
  constexpr int kAll = 8;
  TrainSetup on_drive;
  TrainSetup in_memory;
  in_memory.optimizer_device = in_memory.param_device = "cpu";
  const Expected expected = uninterrupted(on_drive, kAll);
  TrainFolder folder;
  folder.set(on_drive);
  ASSERT_EQ(folder.train("report", 2).exit_code, 0);
  const std::string keys =
      "\"checkpoint_every\": 1, \"checkpoint_dir\": \"" + folder.checkpoints() + "\", ";
  int steps = 2;
  for (const TrainSetup& each : {on_drive, in_memory, on_drive}) {
    TrainSetup setup = each;
    setup.sluice_keys = keys;
    folder.set(setup);
    const ProgramResult result = folder.train("report", steps, {"--resume"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    steps += 3;
  }
  EXPECT_EQ(column(folder, "report", "loss"), expected.losses);
  EXPECT_TRUE(exported(folder, folder.swap()) == expected.weights);
}

TEST(Resume, IsNeededWhereARunIsCommitted) {
  TrainFolder folder;
  folder.set({});
  ASSERT_EQ(folder.train("report", 2).exit_code, 0);
  const auto before = file_text(folder.swap() + "/manifest.json");
  const ProgramResult again = folder.train("report2", 4);
  EXPECT_EQ(again.exit_code, 4);
  EXPECT_NE(again.err.find("--resume"), std::string::npos) << again.err;
  EXPECT_NE(again.err.find(folder.swap()), std::string::npos) << again.err;
  EXPECT_EQ(file_text(folder.swap() + "/manifest.json"), before);
}

// As when a terminal is closed. Under nohup the run goes on.
TEST(HangUp, EndsARunWithItsCheckpoint) {
  TrainFolder folder;
  TrainSetup setup;
  setup.optimizer_device = "cpu";
  setup.sluice_keys = "\"checkpoint_dir\": \"" + folder.checkpoints() + "\", ";
  folder.set(setup);
  const int code =
      run_and_signal(folder.arguments("report", 100000), std::chrono::milliseconds(3000), SIGHUP);
  EXPECT_EQ(code, 129);
  const std::size_t steps = column(folder, "report", "loss").size();
  EXPECT_GT(steps, 0U);
  const std::string report = folder.report_text("report");
  EXPECT_NE(report.find("\"committed_step\":" + std::to_string(steps)), std::string::npos)
      << report;
  ::signal(SIGHUP, SIG_IGN);  // which programs that are started from here inherit
  Process program = start_sluice(folder.arguments("second", 100000, {"--resume"}));
  ::signal(SIGHUP, SIG_DFL);
  ASSERT_TRUE(wait_for_lines(program, folder.path("second/steps.jsonl"), 1));
  program.signal(SIGHUP);
  EXPECT_FALSE(program.wait(0.3)) << "it would have ended by then";
}

}  // namespace
}  // namespace sluice::test
