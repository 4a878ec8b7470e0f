// Killed at any moment, a run resumes at its last committed step with nothing lost.

#include <gtest/gtest.h>

#include <random>

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

std::string exported(const TrainFolder& folder, const std::string& run) {
  const std::string out = folder.path("weights.safetensors");
  const ProgramResult result = run_sluice({"export", run, "--out", out});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return file_text(out);
}

std::vector<std::string> names(const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  for (const std::string& path : paths)
    names.push_back(std::filesystem::path(path).filename().string());
  return names;
}

Expected uninterrupted(const TrainSetup& setup) {
  TrainFolder folder;
  folder.set(setup);
  const ProgramResult result = folder.train("report", kSteps);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return {column(folder, "report", "loss"), names(folder.files("swap")),
          exported(folder, folder.swap())};
}

void kill_and_resume(const TrainSetup& setup, int kills, unsigned seed) {
  const Expected expected = uninterrupted(setup);
  TrainFolder folder;
  folder.set(setup);
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> delay(50, 900);
  for (int i = 0; i < kills; ++i) {
    run_and_signal(folder.arguments("report", kSteps, {"--resume"}), milliseconds(delay(random)),
                   SIGKILL);
  }
  const ProgramResult last = folder.train("report", kSteps, {"--resume"});
  ASSERT_EQ(last.exit_code, 0) << last.err;
  EXPECT_EQ(column(folder, "report", "loss"), expected.losses);
  EXPECT_EQ(names(folder.files("swap")), expected.files);
  EXPECT_TRUE(exported(folder, folder.swap()) == expected.weights);
}

TEST(Resume, AfterKillsAtRandomMomentsTheLossesAreThoseOfAnUninterruptedRun) {
  kill_and_resume({}, 10, 20261121);
}

TEST(Resume, HoldsWithACommitEveryThirdStepAndSpilledGradients) {
  TrainSetup setup;
  setup.sluice_keys = "\"commit_every\": 3, ";
  setup.host_bytes = "21MiB";
  kill_and_resume(setup, 6, 7);
}

TEST(Resume, ATerminatedRunCommitsItsStepAndSaysHowToGoOn) {
  const Expected expected = uninterrupted({});
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
  EXPECT_EQ(names(folder.files("checkpoints")).size(), 2 * 4U)
      << "two checkpoints of a folder and three files each";
}

TEST(Resume, WithNothingCommittedBeginsAnewAndSaysSo) {
  TrainFolder folder;
  folder.set({});
  const ProgramResult result = folder.train("report", 2, {"--resume"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE((result.err + result.out).find("nothing has been committed yet"), std::string::npos)
      << result.err;
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

}  // namespace
}  // namespace sluice::test
