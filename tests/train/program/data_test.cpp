// The data files of a run, checked as a whole before the first commit.

#include <gtest/gtest.h>

#include "train_support.hpp"

namespace sluice::test {
namespace {

// Far from the 64 places of 1 KiB that the quick identity samples.
constexpr std::size_t kBytes = 2'000'000;
constexpr std::size_t kBetweenSamples = kBytes / 63 * 10 + 16'000;

class WholeData : public ::testing::Test {
 protected:
  WholeData() {
    write_file(folder_.data(), text_);
    folder_.set({});
  }
  void change(const std::string& path) const {
    std::string changed = text_;
    changed.replace(kBetweenSamples, 50, 50, '#');
    write_file(path, changed);
  }
  bool committed() const { return std::filesystem::exists(folder_.swap() + "/manifest.json"); }
  TrainFolder folder_;
  const std::string text_ = sample_text(kBytes);
};

TEST_F(WholeData, IsComparedWithTheDataThatTheRunBeganWith) {
  const ProgramResult first = folder_.train("report", 1);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_NE(first.err.find(folder_.data() + ": all 2,000,000 bytes checked in "), std::string::npos)
      << first.err;
  const ProgramResult same = folder_.train("report", 2, {"--resume"});
  EXPECT_EQ(same.exit_code, 0) << same.err;
  EXPECT_EQ(same.err.find("resumed with another"), std::string::npos) << same.err;

  change(folder_.data());
  TrainSetup strict;
  strict.sluice_keys = "\"strict\": true, ";
  folder_.set(strict);
  const std::string manifest = file_text(folder_.swap() + "/manifest.json");
  expect_refused(folder_.train("report", 3, {"--resume"}), 2,
                 {"resumed with another checksum of the training data"});
  EXPECT_EQ(file_text(folder_.swap() + "/manifest.json"), manifest);
  folder_.set({});
  const ProgramResult warned = folder_.train("report", 3, {"--resume"});
  EXPECT_EQ(warned.exit_code, 0) << warned.err;
  EXPECT_NE(warned.err.find("resumed with another checksum of the training data: was "),
            std::string::npos)
      << warned.err;
}

TEST_F(WholeData, OfTheEvaluationIsComparedToo) {
  const std::string held_out = folder_.path("eval.txt");
  write_file(held_out, text_);
  const std::vector<std::string> more = {"--resume", "--eval-data", held_out, "--eval-windows",
                                         "2"};
  ASSERT_EQ(folder_.train("report", 1, more).exit_code, 0);
  change(held_out);
  const ProgramResult warned = folder_.train("report", 2, more);
  EXPECT_EQ(warned.exit_code, 0) << warned.err;
  EXPECT_NE(warned.err.find("resumed with another checksum of the held-out data: was "),
            std::string::npos)
      << warned.err;
  EXPECT_EQ(warned.err.find("checksum of the training data: was"), std::string::npos);
}

TEST_F(WholeData, WithATokenBeyondTheVocabularyIsRefusedThoughNoStepDrawsIt) {
  const std::string tokens = folder_.path("tokens.bin");
  std::string bytes(kBytes, '\0');
  bytes[kBetweenSamples + 1] = '\x01';  // token 256 of a vocabulary of 256
  write_file(tokens, bytes);
  std::vector<std::string> arguments = folder_.arguments("report", 1);
  *std::find(arguments.begin(), arguments.end(), folder_.data()) = tokens;
  expect_refused(run_sluice(arguments), 2,
                 {tokens, "token 256 at byte 333,460", "not below the model's vocabulary of 256"});
  EXPECT_FALSE(committed());
}

// Both a step and the check of all data find it; one message is enough.
TEST_F(WholeData, WithATokenThatTheFirstStepDrawsGetsOneMessage) {
  const std::string tokens = folder_.path("tokens.bin");
  std::string bytes;
  for (int i = 0; i < 30'000; ++i) bytes += std::string("\x2c\x01", 2);  // token 300
  write_file(tokens, bytes);
  std::vector<std::string> arguments = folder_.arguments("report", 3);
  *std::find(arguments.begin(), arguments.end(), folder_.data()) = tokens;
  const ProgramResult result = run_sluice(arguments);
  expect_refused(result, 2, {tokens, "token 300 at byte ", "vocabulary of 256"});
  EXPECT_EQ(result.err.find("warning"), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("token 300"), result.err.rfind("token 300")) << result.err;
}

TEST_F(WholeData, OfBytesBeyondASmallVocabularyIsRefused) {
  std::string model = kTrainModelJson;
  model.replace(model.find("\"vocab_size\": 256"), 17, "\"vocab_size\": 128");
  write_file(folder_.model(), model);
  EXPECT_EQ(folder_.train("report", 1).exit_code, 0);
  folder_.clear_swap();
  std::string bytes = text_;
  bytes[kBetweenSamples] = '\x80';
  write_file(folder_.data(), bytes);
  expect_refused(folder_.train("report", 1), 2,
                 {folder_.data(), "token 128 at byte ", "vocabulary of 128"});
  EXPECT_FALSE(committed());
}

// One epoch, killed in its middle and gone on with: the steps of an undisturbed epoch.
TEST(Epochs, AreGoneOnWithInTheirMiddle) {
  TrainFolder folder;
  folder.set({});
  write_file(folder.data(), sample_text(80 * 32 + 1));  // 80 sequences, 8 a step
  const auto arguments = [&](const std::string& report, const std::vector<std::string>& more) {
    std::vector<std::string> all = {"train",       "--config",         folder.config(),
                                    "--model",     folder.model(),     "--data",
                                    folder.data(), "--epochs",         "1",
                                    "--report",    folder.path(report)};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const ProgramResult whole = run_sluice(arguments("undisturbed", {}));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_NE(whole.err.find("1 epoch of 80 sequences: 10 steps of 8"), std::string::npos)
      << whole.err;
  EXPECT_EQ(column(folder, "undisturbed", "step").size(), 10U);
  folder.clear_swap();
  ASSERT_TRUE(kill_after_line(arguments("report", {}), folder.path("report") + "/steps.jsonl", 3,
                              std::chrono::milliseconds(0)));
  const ProgramResult rest = run_sluice(arguments("report", {"--resume"}));
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_EQ(column(folder, "report", "loss"), column(folder, "undisturbed", "loss"));
  std::vector<std::string> other_batch = arguments("report", {"--resume"});
  other_batch.insert(other_batch.end(), {"--set", "gradient_accumulation_steps=2"});
  expect_refused(run_sluice(other_batch), 2, {"--epochs", "had 8 sequences a step, and has 4 now"});
  const ProgramResult drawn = folder.train("report", 12, {"--resume"});
  EXPECT_NE(drawn.err.find("resumed with another order of the data: was epochs of 80 sequences; "
                           "is drawn with replacement"),
            std::string::npos)
      << drawn.err;
}

// A schedule that is as long as the run.
TEST(Epochs, AreTheStepsOfAScheduleThatIsAuto) {
  TrainFolder folder;
  folder.set({});
  write_file(folder.data(), sample_text(40 * 32 + 1));  // 5 steps of 8 sequences
  const auto rates = [&](const std::string& report, const std::string& steps,
                         const std::string& most_steps = "5") {
    folder.clear_swap();
    const ProgramResult result = run_sluice(
        {"train", "--steps", most_steps, "--config", folder.config(), "--model", folder.model(),
         "--data", folder.data(), "--epochs", "1", "--set", "scheduler.type=WarmupCosineLR",
         "--set", "scheduler.params={\"warmup_num_steps\": 2, \"total_num_steps\": " + steps + "}",
         "--report", folder.path(report)});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return column(folder, report, "lr");
  };
  const std::vector<std::string> found = rates("auto", "\"auto\"");
  EXPECT_EQ(found.size(), 5U);
  EXPECT_EQ(found, rates("five", "5"));
  EXPECT_EQ(found, rates("longer", "\"auto\"", "500"));
  EXPECT_NE(found, rates("fifty", "50"));
}

}  // namespace
}  // namespace sluice::test
