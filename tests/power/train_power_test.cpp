// Power is lost at any moment of `sluice train`: with "power" what a resumed run finds is a step
// that was committed no earlier than the last one that the run had finished, whole, and its line
// and all before it are in steps.jsonl; and with any durability, bytes that no run wrote are never
// taken for good.

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "power_loss.hpp"
#include "sluice/models/checkpoints.hpp"
#include "sluice/models/run_state.hpp"
#include "sluice/nvme/io_backend.hpp"
#include "sluice/offload/checkpoint_folder.hpp"
#include "train/program/train_support.hpp"

namespace sluice::power {
namespace {

using test::TempDir;
using test::TrainFolder;
using test::TrainSetup;

constexpr int kSteps = 4;

using Shards = std::map<std::string, std::vector<std::byte>>;

// Reads a checkpoint or a swap directory as a resumed run does. Throws StorageError when it does
// not hold what its manifest says.
Shards read_all(const std::string& directory) {
  constexpr nvme::IoEngineOptions kOptions{1U << 20U, 4};
  nvme::IoEngine io(nvme::make_backend(nvme::BackendKind::threads, kOptions.depth, 1).backend,
                    kOptions);
  const auto store = offload::SwapStore::open_read_only(directory, io);
  models::parse_run_state(store->committed_metadata(), directory);
  Shards shards;
  for (std::size_t i = 0; i < store->shard_count(); ++i) {
    std::vector<std::byte>& bytes = shards[store->shard(i).name];
    bytes.resize(store->shard(i).size_bytes);
    store->begin_read(i, 0, bytes).finish();
    store->check(i, 0, bytes);
  }
  return shards;
}

// The state that a resumed run would find.
struct Found {
  std::int64_t step = 0;  // 0: nothing; -1: damage, which is said
  std::string why;
  std::int64_t lines = 0;  // of the first steps, whole, in steps.jsonl
};

std::int64_t whole_lines_in(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::int64_t lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    const bool is_whole = line.starts_with("{\"step\":" + std::to_string(lines + 1) + ",") &&
                          line.ends_with('}') && line.find('\0') == std::string::npos;
    if (!is_whole || file.eof()) break;
  }
  return lines;
}

class TrainPower : public ::testing::Test {
 protected:
  // Commits of every run: they follow from the step alone.
  static void SetUpTestSuite() {
    TrainFolder folder;
    folder.set(setup("cpu", "process", folder.checkpoints(), kSteps));
    ASSERT_EQ(folder.train("report", kSteps).exit_code, 0);
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      truth[step] = read_all(offload::checkpoint_path(folder.checkpoints(), step));
    }
  }
  static void TearDownTestSuite() { truth.clear(); }

  static TrainSetup setup(const std::string& device, const std::string& durability,
                          const std::string& checkpoints, int keep) {
    TrainSetup setup;
    setup.optimizer_device = setup.param_device = device;
    setup.sluice_keys =
        "\"durability\": \"" + durability + "\", \"io\": {\"backend\": \"threads\"}, ";
    if (checkpoints.empty()) return setup;
    setup.sluice_keys += "\"checkpoint_dir\": \"" + checkpoints +
                         "\", \"checkpoint_every\": 1, \"keep\": " + std::to_string(keep) + ", ";
    return setup;
  }

  void forget_run() {
    if (!root_.empty()) std::filesystem::remove_all(root_);
    std::filesystem::remove(folder_.path("record"));
    record_.clear();
  }

  // A run whose states are on `device`. The recorder sees the folder of its checkpoints or states,
  // and its report.
  void record_run(const std::string& device, const std::string& durability) {
    const bool swaps = device == "nvme";
    root_ = folder_.path("recorded");
    std::filesystem::create_directory(root_);
    runs_in_ = swaps ? "/swap" : "/checkpoints";
    if (swaps) std::filesystem::create_directory(root_ + runs_in_);  // by its owner, before any run
    test::write_file(folder_.config(),
                     test::config_json(setup(device, durability, swaps ? "" : root_ + runs_in_, 1),
                                       root_ + "/swap"));
    if (swaps) {
      struct stat status {};
      ASSERT_EQ(::stat((root_ + runs_in_).c_str(), &status), 0);
      record_ = {{Op::make_folder, "swap", "", status.st_ino, 0, ""},
                 {Op::sync_folder, "", "", 0, 0, ""}};
    }
    made_ = record_.size();
    const test::ProgramResult result =
        test::run_sluice(folder_.arguments("recorded/report", kSteps),
                         {{"LD_PRELOAD", SLUICE_RECORDER},
                          {"SLUICE_RECORD_ROOT", root_},
                          {"SLUICE_RECORD_LOG", folder_.path("record")},
                          {"SLUICE_RECORD_MARKS", root_ + "/report/steps.jsonl"}});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    for (Entry& entry : read_record(folder_.path("record"))) record_.push_back(std::move(entry));
    ASSERT_GT(record_.size(), 50U);
  }

  Found find(const std::string& root) const {
    Found found;
    found.lines = whole_lines_in(root + "/report/steps.jsonl");
    try {
      if (!std::filesystem::exists(root + runs_in_)) return found;
      const std::string directory = models::newest_checkpoint(root + runs_in_).empty() &&
                                            !offload::SwapStore::holds_committed(root + runs_in_)
                                        ? ""
                                        : models::find_run(root + runs_in_);
      if (directory.empty()) return found;
      const Shards shards = read_all(directory);
      found.step = offload::SwapStore::read_committed(directory).step;
      EXPECT_TRUE(shards == truth.at(found.step))
          << "wrong bytes are taken for step " << found.step;
    } catch (const StorageError& error) {
      found.step = -1;
      found.why = error.what();
    }
    return found;
  }

  // A step's line is written when the step before is committed.
  static std::int64_t committed_by(const LostPower& lost) {
    return std::max<std::int64_t>(0, std::count(lost.said().begin(), lost.said().end(), '\n') - 1);
  }

  // Calls judge(committed, found) for every cut.
  template <typename Judge>
  void at_any_moment(const Judge& judge) {
    std::mt19937_64 random(20261123);
    for (std::size_t i = 0; i < 2 * cut_count() && !HasFailure(); ++i) {
      const std::size_t count = moment(record_, made_, random);
      const LostPower lost(record_, count);
      const TempDir after;
      const Names names = i % 2 == 0 ? Names::in_order : Names::any;
      lost.write_state(after.path(), names, random);
      const Found found = find(after.path());
      SCOPED_TRACE("cut " + std::to_string(i) + " after entry " + std::to_string(count) + " of " +
                   std::to_string(record_.size()) +
                   (names == Names::any ? ", any names" : ", names in order") + "; found " +
                   std::to_string(found.step) + " " + found.why);
      judge(committed_by(lost), found);
    }
  }

  void expect_last_commit_kept() {
    at_any_moment([](std::int64_t committed, const Found& found) {
      EXPECT_TRUE(committed == 0 || found.step >= committed) << "step " << committed << " was lost";
      EXPECT_GE(found.lines, found.step) << "a committed step has no line";
    });
  }

  static inline std::map<std::int64_t, Shards> truth;
  TrainFolder folder_;
  std::string root_;
  std::string runs_in_;
  std::vector<Entry> record_;
  std::size_t made_ = 0;
};

TEST_F(TrainPower, KeepsTheLastCommitOfTheSwapDirectory) {
  record_run("nvme", "power");
  if (!HasFatalFailure()) expect_last_commit_kept();
}

TEST_F(TrainPower, KeepsTheLastCheckpointWithAnyDurability) {
  for (const char* const durability : {"power", "process"}) {
    SCOPED_TRACE(durability);
    forget_run();
    record_run("cpu", durability);
    if (!HasFatalFailure()) expect_last_commit_kept();
  }
}

TEST_F(TrainPower, NeverTakesWrongBytesForGoodWithDurabilityProcess) {
  record_run("nvme", "process");
  if (HasFatalFailure()) return;
  std::size_t lost = 0;
  std::size_t damaged = 0;
  at_any_moment([&](std::int64_t committed, const Found& found) {
    lost += found.step < committed ? 1 : 0;
    damaged += found.step < 0 ? 1 : 0;
  });
  std::cout << "of " << 2 * cut_count() << " cuts, " << lost << " lost a step that was committed, "
            << damaged << " left damage that is found\n";
  EXPECT_GT(lost, 0U) << "nothing was ever lost, so nothing was tested";
}

}  // namespace
}  // namespace sluice::power
