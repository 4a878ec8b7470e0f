// Bad input ends with the exit code of docs/cli.md and one clear message; nothing that was there
// before is lost.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tuple>

#include "in_child.hpp"
#include "train_support.hpp"

namespace sluice::test {
namespace {

TEST(BadInput, DataThatIsAbsentEmptyOrTooShortNamesTheFile) {
  TrainFolder folder;
  folder.set({});
  std::filesystem::remove(folder.data());
  expect_refused(folder.train("report", 1), 2, {folder.data(), "no such file"});
  write_file(folder.data(), "");
  expect_refused(folder.train("report", 1), 2, {folder.data(), "empty"});
  write_file(folder.data(), "short");
  expect_refused(folder.train("report", 1), 2, {folder.data(), "one sequence of 32"});
  std::filesystem::remove(folder.data());
  std::filesystem::create_directory(folder.data());
  expect_refused(folder.train("report", 1), 2, {folder.data()});
  EXPECT_TRUE(std::filesystem::is_empty(folder.swap()));
}

TEST(BadInput, AWorkingDirectoryThatWasRemovedIsSaid) {
  TrainFolder folder;
  folder.set({});
  const std::string gone = folder.path("gone");
  const auto from_there = [&] {
    std::filesystem::create_directory(gone);
    if (::chdir(gone.c_str()) != 0 || ::rmdir(gone.c_str()) != 0) ::_exit(126);
  };
  expect_refused(run_sluice(folder.arguments("report", 1), {}, from_there), 2,
                 {"the working directory was removed"});
}

TEST(BadInput, ASwapDirectoryThatIsAbsentOrAFileIsNamed) {
  TrainFolder folder;
  folder.set({});
  std::filesystem::remove_all(folder.swap());
  expect_refused(folder.train("report", 1), 4, {folder.swap(), "nvme_path"});
  write_file(folder.swap(), "x");
  expect_refused(folder.train("report", 1), 4, {folder.swap(), "nvme_path"});
  EXPECT_EQ(file_text(folder.swap()), "x");
}

TEST(BadInput, AReportThatFindsNoRoomLeavesNoDraft) {
  TrainFolder folder;
  TrainSetup setup;
  setup.optimizer_device = setup.param_device = "cpu";
  folder.set(setup);
  const auto limit_files = [] {
    in_child_check(::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO) == STDOUT_FILENO);
    limit_resource(RLIMIT_FSIZE, 1024);  // enough for the line of a step
  };
  expect_refused(run_sluice(folder.arguments("report", 1), {}, limit_files), 4,
                 {folder.path("report/report.json.tmp"), "File too large"});
  EXPECT_TRUE(std::filesystem::exists(folder.path("report/steps.jsonl")));
  EXPECT_FALSE(std::filesystem::exists(folder.path("report/report.json.tmp")));
}

// A directory that may be there and cannot be reached is not called missing.
TEST(BadInput, ADirectoryAboveThatMayNotBeEnteredIsSaid) {
  TrainFolder folder;
  namespace fs = std::filesystem;
  fs::permissions(folder.path("."), fs::perms::all);
  fs::create_directories(folder.path("locked/swap"));
  fs::permissions(folder.path("locked"), fs::perms::owner_all);
  const auto as_another_user = [&](const std::vector<std::string>& arguments) {
    return run_sluice(arguments, {}, [] { become_another_user(); });
  };
  const ProgramResult version = as_another_user({"--version"});
  SLUICE_SKIP_IF_NOT_PERMITTED(version, "becoming another user");
  if (version.exit_code == 127) GTEST_SKIP() << "other users cannot reach the build's folder";
  TrainSetup setup;
  write_file(folder.config(), config_json(setup, folder.path("locked/swap")));
  const std::string advice = "must be allowed to enter the directories above";
  expect_refused(as_another_user(folder.arguments("report", 1)), 4,
                 {folder.path("locked/swap"), "Permission denied", advice});
  for (const char* place : {"locked/checkpoints", "locked/deeper/checkpoints"}) {
    setup.optimizer_device = setup.param_device = "cpu";
    setup.sluice_keys = "\"checkpoint_dir\": \"" + folder.path(place) + "\", ";
    folder.set(setup);
    for (const std::vector<std::string>& more :
         {std::vector<std::string>{}, std::vector<std::string>{"--resume"}}) {
      expect_refused(as_another_user(folder.arguments("report", 1, more)), 4,
                     {folder.path(place), "Permission denied", advice});
    }
  }
}

TEST(BadInput, ASwapDirectoryInUseNamesTheProcess) {
  TrainFolder folder;
  folder.set({});
  Process first = start_sluice(folder.arguments("first", 100000));
  while (!std::filesystem::exists(folder.swap() + "/manifest.json")) ASSERT_TRUE(first.runs());
  expect_refused(folder.train("second", 2, {"--resume"}), 4,
                 {folder.swap(), std::to_string(first.id())});
  expect_refused(folder.train("second", 2), 4, {folder.swap(), std::to_string(first.id())});
  first.signal(SIGKILL);
  first.wait();
  EXPECT_EQ(folder.train("first", 1, {"--resume"}).exit_code, 0);
}

TEST(BadInput, AFullDiskIsRefusedBeforeAnythingIsWritten) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounting a small file system needs root";
  TrainFolder folder;
  if (::mount("tmpfs", folder.swap().c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "mount is not permitted here";
  }
  folder.set({});
  const ProgramResult result = folder.train("report", 1);
  const bool empty = std::filesystem::is_empty(folder.swap());
  ::umount(folder.swap().c_str());
  expect_refused(result, 3, {folder.swap(), "free"});
  EXPECT_TRUE(empty);
}

TEST(BadInput, AFullDiskIsNoneForARunThatWritesNoCheckpoint) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounting a small file system needs root";
  TrainFolder folder;
  if (::mount("tmpfs", folder.swap().c_str(), "tmpfs", 0, "size=16m") != 0)
    GTEST_SKIP() << "mount is not permitted here";
  TrainSetup setup;
  setup.optimizer_device = setup.param_device = "cpu";
  setup.sluice_keys = "\"checkpoint_dir\": \"" + folder.swap() + "/saved\", ";
  folder.set(setup);
  const std::vector<std::string> resumed = {"--resume", "--eval-fraction", "0.1"};
  const ProgramResult trained = folder.train("report", 2);
  std::ofstream(folder.swap() + "/filler") << std::string(std::size_t{16} << 20U, 'x');
  const ProgramResult ended = folder.train("ended", 2, resumed);
  const ProgramResult evaluated = folder.train("evaluated", 0, resumed);
  const ProgramResult refused = folder.train("refused", 3, {"--resume"});
  std::vector<std::string> line = folder.arguments("planned", 2, resumed);
  line.front() = "plan";
  const ProgramResult planned = run_sluice(line);
  ::umount2(folder.swap().c_str(), MNT_DETACH);
  for (const ProgramResult& result : {trained, ended, evaluated, planned})
    EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_refused(refused, 3, {folder.swap() + "/saved needs", "are available"});
}

TEST(BadInput, ACheckpointDirectoryThatIsMemoryIsSaid) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounting a file system needs root";
  TrainFolder folder;
  if (::mount("tmpfs", folder.swap().c_str(), "tmpfs", 0, "size=64m") != 0)
    GTEST_SKIP() << "mount is not permitted here";
  const std::string checkpoints = folder.swap() + "/new";
  TrainSetup setup;
  setup.optimizer_device = setup.param_device = "cpu";
  setup.sluice_keys = "\"checkpoint_dir\": \"" + checkpoints + "\", ";
  folder.set(setup);
  const ProgramResult said = folder.train("said", 1);
  setup.sluice_keys += "\"strict\": true, ";
  folder.set(setup);
  const ProgramResult strict = folder.train("strict", 2, {"--resume"});
  ::umount2(folder.swap().c_str(), MNT_DETACH);
  const std::string line = "checkpoints go to " + checkpoints + ": ";
  EXPECT_EQ(said.exit_code, 0) << said.err;
  EXPECT_NE(said.out.find("chosen: " + line), std::string::npos) << said.out;
  expect_refused(strict, 2, {"\"strict\": true does not allow: " + line, "tmpfs"});
}

TEST(BadInput, AReportInACheckpointIsRefused) {
  TrainFolder folder;
  TrainSetup setup;
  setup.sluice_keys =
      "\"checkpoint_dir\": \"" + folder.checkpoints() + "\", \"checkpoint_every\": 1, ";
  folder.set(setup);
  ASSERT_EQ(folder.train("report", 1).exit_code, 0);
  const std::string checkpoint = folder.checkpoints() + "/step-00000001";
  for (const char* inside : {"", "/report"})
    expect_refused(folder.train("checkpoints/step-00000001" + std::string(inside), 2, {"--resume"}),
                   2, {"--report: ", "lies in a checkpoint", checkpoint});
}

TEST(BadInput, DamagedStatesAreNamedAndNothingIsOverwritten) {
  TrainFolder folder;
  folder.set({});
  ASSERT_EQ(folder.train("report", 3).exit_code, 0);
  const std::string slots[] = {folder.swap() + "/states.0.swap", folder.swap() + "/states.1.swap"};
  const std::string saved[] = {file_text(slots[0]), file_text(slots[1])};
  for (int slot = 0; slot < 2; ++slot) {
    std::string flipped = saved[slot];
    flipped[5000] = static_cast<char>(flipped[5000] ^ 0x10);
    write_file(slots[slot], flipped);
  }
  expect_refused(folder.train("report", 5, {"--resume"}), 4,
                 {folder.swap(), "is damaged", "embedding/weight"});
  for (int slot = 0; slot < 2; ++slot)
    write_file(slots[slot], saved[slot].substr(0, saved[slot].size() / 2));
  expect_refused(folder.train("report", 5, {"--resume"}), 4, {".swap"});
  for (int slot = 0; slot < 2; ++slot) write_file(slots[slot], saved[slot]);
  EXPECT_EQ(folder.train("report", 5, {"--resume"}).exit_code, 0) << "the undamaged files resume";
  const std::string manifest = folder.swap() + "/manifest.json";
  const std::string text = file_text(manifest);
  write_file(manifest, text.substr(0, text.size() / 2));
  expect_refused(folder.train("report", 6, {"--resume"}), 4, {manifest});
}

// Weights near the end of fp32: the loss of the first step is no number.
TEST(BadInput, ALossThatIsNotFiniteSkipsTheStepOrStopsTheRunAsConfigured) {
  TrainFolder folder;
  folder.set({});
  ASSERT_EQ(folder.train("report", 1).exit_code, 0);
  exported(folder, folder.swap());
  const std::string weights = folder.path("weights.safetensors");
  std::string text = file_text(weights);
  text.replace(text.size() / 2, text.size() / 2, text.size() / 2, '\x7F');  // 3.4e38
  write_file(weights, text);
  for (const double clipping : {0.0, 1.0}) {
    SCOPED_TRACE(clipping);
    TrainSetup setup;
    setup.clipping = clipping;
    folder.clear_swap();
    folder.set(setup);
    const ProgramResult skipped = folder.train("skipped", 2, {"--init", weights});
    EXPECT_EQ(skipped.exit_code, 0) << skipped.err;
    EXPECT_EQ(column(folder, "skipped", "skipped"), (std::vector<std::string>{"true", "true"}));
    setup.sluice_keys = "\"non_finite\": \"stop\", ";
    folder.clear_swap();
    folder.set(setup);
    expect_refused(folder.train("stopped", 2, {"--init", weights}), 1,
                   {"step 1: the loss is not finite", "non_finite"});
  }
}

// In an untied embedding, the rows of bytes that never occur have gradients of exactly 0.
class ZeroEpsilon : public ::testing::TestWithParam<std::tuple<double, bool, bool>> {
 protected:
  ZeroEpsilon() {
    std::string model = kTrainModelJson;
    model.insert(model.size() - 1, ", \"tie_word_embeddings\": false");
    write_file(folder_.model(), model);
    setup_.clipping = std::get<0>(GetParam());
    setup_.bf16 = std::get<1>(GetParam());
    if (!std::get<2>(GetParam())) setup_.sluice_keys = "\"overlap\": false, ";
  }
  void set(const std::string& epsilon) {
    std::string text = config_json(setup_, folder_.swap());
    const std::string lr = "\"lr\": 1e-3";
    text.insert(text.find(lr) + lr.size(), ", \"eps\": " + epsilon);
    write_file(folder_.config(), text);
  }
  TrainFolder folder_;
  TrainSetup setup_;
};

TEST_P(ZeroEpsilon, EndsTheRunBeforeACommitAndTheLastCommitGoesOn) {
  set("1e-8");
  ASSERT_EQ(folder_.train("whole", 4).exit_code, 0);
  const std::string whole = exported(folder_, folder_.swap());
  folder_.clear_swap();
  ASSERT_EQ(folder_.train("report", 2).exit_code, 0);
  set("0");
  for (int attempt = 0; attempt < 2; ++attempt) {
    expect_refused(folder_.train("report", 4, {"--resume"}), 1,
                   {"step 3: the update of transformer.wte.weight (element ",
                    "gave a non-finite value from finite gradients", "\"eps\": 0",
                    "The commit of step 2 stays valid", "--resume"});
    EXPECT_EQ(column(folder_, "report", "loss").size(), 2U);
    const ProgramResult verified = run_sluice({"nvme", "verify", folder_.swap()});
    EXPECT_EQ(verified.exit_code, 0) << verified.err;
  }
  set("1e-8");
  const ProgramResult result = folder_.train("report", 4, {"--resume"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(column(folder_, "report", "loss"), column(folder_, "whole", "loss"));
  EXPECT_TRUE(exported(folder_, folder_.swap()) == whole);
}
INSTANTIATE_TEST_SUITE_P(ClippingBf16AndOverlap, ZeroEpsilon,
                         ::testing::Values(std::tuple(1.0, true, true), std::tuple(0.0, true, true),
                                           std::tuple(0.0, false, false),
                                           std::tuple(1.0, false, true)));

TEST_P(ZeroEpsilon, OfStatesInHostMemoryNamesTheLastCheckpoint) {
  setup_.optimizer_device = setup_.param_device = "cpu";
  const std::string keys = setup_.sluice_keys;
  set("0");
  expect_refused(folder_.train("none", 2), 1,
                 {"step 1: the update of ", "The states were updated in place",
                  "Nothing was committed before"});
  setup_.sluice_keys = keys + "\"checkpoint_dir\": \"" + folder_.checkpoints() + "\", ";
  set("1e-8");
  ASSERT_EQ(folder_.train("report", 2).exit_code, 0);
  const std::vector<std::string> before = folder_.files("checkpoints");
  set("0");
  expect_refused(folder_.train("report", 4, {"--resume"}), 1,
                 {"step 3: the update of ", "The states were updated in place",
                  "The last checkpoint is " + folder_.checkpoints() + "/step-00000002"});
  EXPECT_EQ(folder_.files("checkpoints"), before);
}

TEST(BadInput, AnotherModelThanTheSavedOneIsRefused) {
  TrainFolder folder;
  folder.set({});
  ASSERT_EQ(folder.train("report", 2).exit_code, 0);
  write_file(
      folder.model(),
      R"({"model_type": "gpt2", "n_layer": 4, "n_embd": 64, "n_head": 4, "n_positions": 32, "vocab_size": 256})");
  expect_refused(
      folder.train("report", 3, {"--resume"}), 4,
      {folder.swap(), "another model than --model describes: n_layer (saved 3, given 4)"});
  write_file(folder.model(), kTrainModelJson);
  EXPECT_EQ(folder.train("report", 3, {"--resume"}).exit_code, 0);
}

TEST(BadInput, BudgetsOfZeroOrWithATypoNameTheKey) {
  TrainFolder folder;
  TrainSetup setup;
  setup.device_bytes = "0";
  folder.set(setup);
  expect_refused(folder.train("report", 1), 2, {"device_bytes"});
  setup.device_bytes = "64MoB";
  folder.set(setup);
  expect_refused(folder.train("report", 1), 2, {"device_bytes", "MoB"});
}

// Tests see no GPU, also where one is.
TEST(BadInput, AGpuThatIsNotThereIsRefusedWithTheReason) {
  TrainFolder folder;
  TrainSetup setup;
  setup.sluice_keys = "\"device\": \"cuda:1\",";
  folder.set(setup);
  expect_refused(folder.train("report", 1), 2, {"\"device\": \"cuda:1\""});
}

TEST(BadInput, BudgetsTenPercentTooSmallListChangesOfWhichTheFirstFits) {
  TrainFolder folder;
  folder.set({});
  const Json::Value least = plan_of(folder)["least_bytes"];
  TrainSetup setup;
  setup.device_bytes = std::to_string(least["device"].asUInt64() * 9 / 10);
  setup.host_bytes = std::to_string(least["host"].asUInt64() * 9 / 10);
  folder.set(setup);
  const ProgramResult refused = folder.train("report", 1);
  expect_refused(refused, 3, {"short by", "1. set ", "2. set "});
  EXPECT_TRUE(std::filesystem::is_empty(folder.swap()));

  const auto value_of = [&](const std::string& key, const std::string& otherwise) {
    const auto line = refused.err.find("1. set ");
    const auto at = refused.err.find("\"" + key + "\": \"", line);
    if (at == std::string::npos || at > refused.err.find('\n', line)) return otherwise;
    const auto begin = at + key.size() + 5;
    return refused.err.substr(begin, refused.err.find('"', begin) - begin);
  };
  setup.device_bytes = value_of("device_bytes", setup.device_bytes);
  setup.host_bytes = value_of("host_bytes", setup.host_bytes);
  folder.set(setup);
  const ProgramResult applied = folder.train("report", 2);
  EXPECT_EQ(applied.exit_code, 0) << applied.err;
}

}  // namespace
}  // namespace sluice::test
