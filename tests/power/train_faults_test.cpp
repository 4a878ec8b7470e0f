// The drive fails at any moment of `sluice train`: a full disk, an error of the drive, a read-only
// remount, a folder that goes away. The run ends by itself and says what failed; nothing committed
// is lost; a resumed run has the losses of an undisturbed one. SLUICE_FAULTS sets the number of
// faults of each kind and each case (default 2), spread evenly over the operations of a run.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>

#include "train/program/train_support.hpp"

namespace sluice::power {
namespace {

namespace fs = std::filesystem;
using test::ProgramResult;
using test::TrainFolder;
using test::TrainSetup;

constexpr int kSteps = 8;  // over 300 operations
constexpr unsigned kMostSeconds = 60;

constexpr const char* kSmallestModel =
    R"({"model_type": "gpt2", "n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 16, "vocab_size": 256})";

std::size_t fault_count() {
  const char* const asked = std::getenv("SLUICE_FAULTS");
  return asked == nullptr ? 2 : static_cast<std::size_t>(std::atol(asked));
}

// The last number behind `mark`; 0: there is none.
std::int64_t last_number(const std::string& text, const std::string& mark) {
  const auto at = text.rfind(mark);
  return at == std::string::npos ? 0 : std::atoll(text.c_str() + at + mark.size());
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// One fault and the run that it hit.
struct Hit {
  std::size_t number = 0;
  std::string operation;  // "write /root/swap/manifest.json.tmp"; empty: the run made fewer calls
  ProgramResult run;
};

class TrainFaults : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { test::write_file(folder_.model(), kSmallestModel); }

  std::string root() const { return folder_.path("root"); }

  void begin(const std::string& device) {
    TrainSetup setup;
    setup.optimizer_device = setup.param_device = device;
    setup.accumulation = 1;
    setup.sluice_keys = R"("io": {"backend": "threads"}, "checkpoint_dir": ")" + root() +
                        R"(/checkpoints", "checkpoint_every": 2, "keep": 1, )";
    test::write_file(folder_.config(), test::config_json(setup, root() + "/swap"));
  }

  // Runs from the beginning; call `at` fails. The log has the calls.
  Hit run(std::size_t at) {
    fs::remove_all(root());
    fs::create_directories(root() + "/swap");
    return run_on(at, {});
  }

  // Runs with what lies in the root.
  Hit run_on(std::size_t at, const std::vector<std::string>& more) {
    fs::remove(folder_.path("log"));
    Hit hit;
    hit.number = at;
    hit.run = test::run_sluice(folder_.arguments("root/report", kSteps, more),
                               {{"LD_PRELOAD", SLUICE_FAULT_INJECTOR},
                                {"SLUICE_FAULT", GetParam()},
                                {"SLUICE_FAULT_AT", std::to_string(at)},
                                {"SLUICE_FAULT_ROOT", root()},
                                {"SLUICE_FAULT_LOG", folder_.path("log")}},
                               [] { ::alarm(kMostSeconds); });
    std::istringstream log(test::file_text(folder_.path("log")));
    calls_ = 0;
    for (std::string line; std::getline(log, line); ++calls_) {
      const auto mark = line.find(" <- ");
      if (mark != std::string::npos && hit.operation.empty()) hit.operation = line.substr(0, mark);
    }
    if (fs::exists(root() + ".gone")) bring_back();
    return hit;
  }

  // The folder that went away is there again.
  void bring_back() {
    const std::string gone = root() + ".gone";
    const std::string last = root() + "/checkpoints/step-0000000" + std::to_string(kSteps);
    EXPECT_FALSE(fs::exists(last)) << "checkpoints are written in place of the folder that is gone";
    fs::remove_all(root());
    fs::rename(gone, root());
  }

  std::vector<std::string> losses() const { return test::column(folder_, "root/report", "loss"); }

  // The newest step that is whole on the drive; 0: none.
  std::int64_t found_step(bool swaps) const {
    std::int64_t step = 0;
    for (const char* const part : {"/swap", "/checkpoints"}) {
      if (!swaps && part == std::string("/swap")) continue;
      const ProgramResult whole = test::run_sluice({"nvme", "verify", "--json", root() + part});
      EXPECT_FALSE(has(whole.out, "\"ok\":false")) << whole.out;
      if (whole.exit_code == 0) step = std::max(step, last_number(whole.out, "\"step\":"));
    }
    return step;
  }

  // The step that the run must have committed: a step's line is written when the step before is
  // committed.
  std::int64_t committed_step(const Hit& hit, bool swaps) const {
    const std::int64_t checkpoint = last_number(hit.run.out + hit.run.err, "\ncheckpoint of step ");
    const auto lines = test::line_count(root() + "/report/steps.jsonl");
    return std::max<std::int64_t>(checkpoint, swaps ? lines - 1 : 0);
  }

  // Every step was taken and the report written: the run ended with 4 because checkpoints are
  // missing.
  bool misses_only(const Hit& hit) const {
    return has(hit.run.err, " could not be written; the last: ") &&
           has(hit.run.out + hit.run.err, "report: ");
  }

  // How the run ended, and what it said.
  void expect_said(const Hit& hit) {
    const std::string& err = hit.run.err;
    EXPECT_TRUE(hit.run.exit_code == 0 || hit.run.exit_code == 4) << hit.run.exit_code;
    EXPECT_FALSE(has(err, "terminate called"));
    const bool misses = has(err, " is missing: ");
    EXPECT_TRUE(!misses || hit.run.exit_code == 4) << "a checkpoint is missing";
    const bool lasts = GetParam() == std::string("EROFS") || GetParam() == std::string("gone");
    EXPECT_TRUE(!misses || lasts || losses() == undisturbed_) << "the run did not go on";
    if (hit.run.exit_code == 0) {
      const std::string& call = hit.operation;
      const bool removes = call.starts_with("unlink ") && has(call, "/checkpoints/step-");
      EXPECT_TRUE(!removes || has(call, ".tmp") || has(err, "an old checkpoint is left")) << call;
      EXPECT_EQ(losses(), undisturbed_);
      return;
    }
    EXPECT_TRUE(has(err, root() + "/")) << "no file is named";
    const std::string stopped = "training stopped after step ";
    if (test::line_count(root() + "/report/steps.jsonl") == 0 || misses_only(hit)) return;
    EXPECT_TRUE(has(err, stopped)) << "the step is not said";
    EXPECT_TRUE(has(err, "Once the cause is mended, ")) << "what to do is not said";
  }

  void expect_kept(const Hit& hit, bool swaps) {
    const std::int64_t committed = committed_step(hit, swaps);
    const std::int64_t found = found_step(swaps);
    EXPECT_GE(found, committed) << "a step that was committed is lost";
    EXPECT_GE(found, last_number(hit.run.err, "; step ")) << "a step is said to be committed";
    const ProgramResult rest = test::run_sluice(
        folder_.arguments("root/report", kSteps, {"--resume"}), {}, [] { ::alarm(kMostSeconds); });
    EXPECT_EQ(rest.exit_code, 0) << rest.err;
    EXPECT_GE(last_number(rest.err, "resumed from step "), found) << rest.err;
    EXPECT_EQ(losses(), undisturbed_);
  }

  void fail_often(const std::string& device) {
    begin(device);
    const Hit whole = run(0);
    ASSERT_EQ(whole.run.exit_code, 0) << whole.run.err;
    undisturbed_ = losses();
    ASSERT_EQ(undisturbed_.size(), static_cast<std::size_t>(kSteps));
    const std::size_t calls = calls_;
    const std::size_t faults = std::min(fault_count(), calls);
    std::map<int, int> codes;
    std::size_t noticed = 0;
    for (std::size_t i = 0; i < faults; ++i) {
      // In the middle of the i-th of `faults` equal parts.
      const Hit hit = run((2 * i + 1) * calls / (2 * faults) + 1);
      SCOPED_TRACE(std::string(GetParam()) + " at call " + std::to_string(hit.number) + " of " +
                   std::to_string(calls) + ": " + hit.operation + "; exit " +
                   std::to_string(hit.run.exit_code) + "\n" + hit.run.err);
      ++codes[hit.run.exit_code];
      if (hit.run.exit_code == 4 || has(hit.run.err, ", and the training goes on")) ++noticed;
      expect_said(hit);
      expect_kept(hit, device == "nvme");
      if (std::getenv("SLUICE_FAULTS_SHOW") != nullptr) {
        std::cout << "CALL " << hit.number << " " << hit.operation << " exit " << hit.run.exit_code
                  << "\n"
                  << hit.run.err << "\n";
      }
    }
    std::cout << faults << " faults over " << calls << " calls:";
    for (const auto& [code, count] : codes) std::cout << " " << count << " ended with " << code;
    std::cout << "\n";
    EXPECT_GT(noticed, 0U) << "no run noticed a fault, so nothing was tested";
  }

  // Goes on from a committed run with "durability": "none", which writes in place: once a fault has
  // ended the run, either the state that it names is there, or it says that nothing is.
  void fail_in_place(std::size_t at) {
    const std::string before = folder_.path("before");
    fs::remove_all(root());
    fs::copy(before, root(), fs::copy_options::recursive);
    const Hit hit = run_on(at, {"--resume"});
    SCOPED_TRACE(std::string(GetParam()) + " at call " + std::to_string(at) + ": " + hit.operation +
                 "; exit " + std::to_string(hit.run.exit_code) + "\n" + hit.run.err);
    EXPECT_TRUE(hit.run.exit_code == 0 || hit.run.exit_code == 4);
    const std::int64_t found = found_step(true);
    EXPECT_TRUE(hit.run.exit_code != 0 || found == kSteps) << found;
    const std::int64_t said = last_number(hit.run.err, "; step ");
    EXPECT_LE(said, found) << "a step is said to be committed";
    said_nothing_ = said_nothing_ || has(hit.run.err, "; nothing is committed");
    if (said > 0) {
      const ProgramResult rest =
          test::run_sluice(folder_.arguments("root/report", kSteps, {"--resume"}));
      EXPECT_EQ(rest.exit_code, 0) << rest.err;
      EXPECT_EQ(losses(), undisturbed_);
    }
  }

  TrainFolder folder_;
  std::vector<std::string> undisturbed_;
  bool said_nothing_ = false;  // that nothing is committed, of any fault
  std::size_t calls_ = 0;      // of the last run
};

TEST_P(TrainFaults, WithStatesOnNvme) {
  fail_often("nvme");
}

TEST_P(TrainFaults, WithStatesInHostMemoryAndCheckpoints) {
  fail_often("cpu");
}

TEST_P(TrainFaults, WithStatesOnNvmeAndDurabilityNone) {
  TrainSetup setup;
  setup.accumulation = 1;
  setup.sluice_keys = R"("io": {"backend": "threads"}, "durability": "none", )";
  test::write_file(folder_.config(), test::config_json(setup, root() + "/swap"));
  ASSERT_EQ(run(0).run.exit_code, 0);
  undisturbed_ = losses();
  fs::remove_all(root());
  fs::create_directories(root() + "/swap");
  ASSERT_EQ(folder_.train("root/report", kSteps / 2).exit_code, 0);
  fs::rename(root(), folder_.path("before"));
  fs::copy(folder_.path("before"), root(), fs::copy_options::recursive);
  ASSERT_EQ(run_on(0, {"--resume"}).run.exit_code, 0);
  const std::size_t calls = calls_;
  const std::size_t faults = std::min(fault_count(), calls);
  for (std::size_t i = 0; i < faults; ++i) fail_in_place((2 * i + 1) * calls / (2 * faults) + 1);
  EXPECT_TRUE(said_nothing_) << "no fault came while the states were written";
}

// As when a file system goes read-only by an error of its drive: the system's memory has the bytes.
TEST_P(TrainFaults, SaysWhenTheCommittedStepMayNotBeOnItsDrive) {
  TrainSetup setup;
  setup.accumulation = 1;
  setup.sluice_keys = R"("io": {"backend": "threads"}, )";
  test::write_file(folder_.config(), test::config_json(setup, root() + "/swap"));
  ASSERT_EQ(run(0).run.exit_code, 0);
  std::size_t call = 2 * calls_ / 3;
  Hit hit = run(call);
  while (has(hit.operation, "/report/")) hit = run(++call);  // lines of steps may wait
  SCOPED_TRACE(hit.operation + "\n" + hit.run.err);
  EXPECT_EQ(hit.run.exit_code, 4);
  const auto said_at = hit.run.err.find(" may not be on its drive (");
  const bool said = said_at != std::string::npos;
  EXPECT_EQ(said, GetParam() == std::string("EROFS"));
  // The sync may take long.
  EXPECT_LE(hit.run.err.find(" is committed. Once the cause is mended, "), said_at);
  EXPECT_EQ(said, has(hit.run.err, ": copy " + root() + "/swap before a file system"));
}

INSTANTIATE_TEST_SUITE_P(Drive, TrainFaults, ::testing::Values("ENOSPC", "EIO", "EROFS", "gone"),
                         [](const auto& fault) { return std::string(fault.param); });

// A drive that tells at a close what it did not write, as one that uploads files then.
class TrainCloses : public ::testing::Test {
 protected:
  void SetUp() override {
    test::write_file(folder_.model(), kSmallestModel);
    TrainSetup setup;
    setup.accumulation = 1;
    setup.sluice_keys = R"("checkpoint_dir": ")" + folder_.path("checkpoints") +
                        R"(", "checkpoint_every": 2, "keep": 1, )";
    test::write_file(folder_.config(), test::config_json(setup, folder_.path("swap")));
  }

  // Each close of a file whose path has this part fails.
  ProgramResult run(const std::string& part) {
    return test::run_sluice(folder_.arguments("report", kSteps),
                            {{"LD_PRELOAD", SLUICE_FAULT_INJECTOR}, {"SLUICE_FAULT_CLOSE", part}},
                            [] { ::alarm(kMostSeconds); });
  }

  TrainFolder folder_;
};

TEST_F(TrainCloses, OfACheckpointsStatesLeaveTheOlderCheckpoint) {
  const std::string last = folder_.path("checkpoints/step-0000000" + std::to_string(kSteps));
  const ProgramResult missed = run(last + ".tmp/states");
  EXPECT_EQ(missed.exit_code, 4);
  EXPECT_TRUE(has(missed.err, last + ".tmp/states.0.swap")) << missed.err;
  EXPECT_FALSE(fs::exists(last));
  const std::string before = folder_.path("checkpoints/step-0000000" + std::to_string(kSteps - 2));
  EXPECT_EQ(test::run_sluice({"nvme", "verify", before}).exit_code, 0);
}

TEST_F(TrainCloses, OfTheSwapDirectorysStatesEndTheRunWithAnErrorThatNamesThem) {
  const ProgramResult ended = run("/swap/states");
  EXPECT_EQ(ended.exit_code, 4);
  EXPECT_TRUE(has(ended.err, folder_.path("swap/states."))) << ended.err;
  EXPECT_TRUE(has(ended.err, "sluice nvme verify " + folder_.path("swap"))) << ended.err;
}

// One allocation of the thread that updates fails, whichever it is: the run ends by itself, and a
// resumed one goes on.
TEST(TrainMemory, ThatIsShortInAnUpdateEndsTheRun) {
  constexpr int kMostAllocations = 400;
  constexpr int kApart = 36;
  constexpr int kStepsHere = 2;
  const TrainFolder folder;
  test::write_file(folder.model(), kSmallestModel);
  TrainSetup setup;
  setup.accumulation = 1;
  const std::string log = folder.path("log");
  test::write_file(folder.config(), test::config_json(setup, folder.path("swap")));
  int ended = 0;
  for (int at = 1; at < kMostAllocations; at += kApart) {
    SCOPED_TRACE("allocation " + std::to_string(at));
    for (const char* left : {"log", "swap", "report"}) fs::remove_all(folder.path(left));
    fs::create_directory(folder.path("swap"));
    const ProgramResult run = test::run_sluice(folder.arguments("report", kStepsHere),
                                               {{"LD_PRELOAD", SLUICE_MEMORY_INJECTOR},
                                                {"SLUICE_FAULT_AT", std::to_string(at)},
                                                {"SLUICE_FAULT_LOG", log}},
                                               [] { ::alarm(kMostSeconds); });
    if (!fs::exists(log)) break;  // there are fewer
    EXPECT_TRUE(run.exit_code == 0 || run.exit_code == 1) << run.exit_code << "\n" << run.err;
    if (run.exit_code == 0) continue;
    ++ended;
    EXPECT_EQ(folder.train("report", kStepsHere, {"--resume"}).exit_code, 0);
  }
  EXPECT_GT(ended, 0) << "no allocation failed, so nothing was tested";
}

}  // namespace
}  // namespace sluice::power
