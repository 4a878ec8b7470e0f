// Power is lost at any moment of a run that commits steps to a swap store, or of several runs that
// were killed. With "power" the last step that was committed is there, whole; with every
// durability, wrong bytes are never taken for good. SLUICE_POWER_CUTS: how many moments each test
// tries.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "power_loss.hpp"
#include "process.hpp"
#include "store_steps.hpp"
#include "temp_dir.hpp"

namespace sluice::power {
namespace {

using test::TempDir;

struct WriterRun {
  std::string durability;
  int steps = 4;
  long end_before = 0;  // the change before which it is killed; 0: it ends by itself
};

// Runs store_writer under the recorder; its folders lie below `root`.
int record(const WriterRun& run, const std::string& root, const std::string& log,
           const std::vector<std::string>& folders) {
  test::Environment environment = {
      {"LD_PRELOAD", SLUICE_RECORDER}, {"SLUICE_RECORD_ROOT", root}, {"SLUICE_RECORD_LOG", log}};
  if (run.end_before > 0)
    environment.emplace_back("SLUICE_RECORD_END", std::to_string(run.end_before));
  std::vector<std::string> words = {SLUICE_STORE_WRITER, run.durability, std::to_string(run.steps)};
  for (const std::string& folder : folders) words.push_back(root + "/" + folder);
  return test::Process(std::move(words), {.environment = environment, .err = ""}).wait();
}

std::int64_t last_committed(const std::string& said) {
  const std::size_t at = said.rfind("committed ");
  return at == std::string::npos ? 0 : std::atoll(said.c_str() + at + 10);
}

// A few runs one after the other in one folder, and the states that loss of power may leave.
class PowerLoss : public ::testing::Test {
 protected:
  void record_runs(const std::vector<WriterRun>& runs) {
    for (const std::string& folder : folders_) {
      std::filesystem::create_directory(place_.file(folder));
      // The folders are older than the runs: their names are durable.
      made_.push_back({Op::make_folder, folder, "", inode_of(place_.file(folder)), 0, ""});
    }
    made_.push_back({Op::sync_folder, "", "", 0, 0, ""});
    const std::string log = aside_.file("record");
    for (const WriterRun& run : runs) {
      ASSERT_EQ(record(run, place_.path(), log, folders_), run.end_before > 0 ? 9 : 0);
    }
    runs_ = static_cast<std::int64_t>(runs.size());
    record_ = made_;
    for (Entry& entry : read_record(log)) record_.push_back(std::move(entry));
    // Else a striped store that is made elsewhere would be refused as a copy of this one.
    for (const std::string& folder : folders_) std::filesystem::remove_all(place_.file(folder));
    ASSERT_GT(record_.size(), 50U);
  }

  static std::uint64_t inode_of(const std::string& path) {
    struct stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0);
    return status.st_ino;
  }

  // The step that a program finds in the folder; 0: none; -1: what is there is damaged, and said to
  // be.
  std::int64_t step_found(const std::string& root) const {
    const std::string folder = root + "/" + folders_.front();
    try {
      if (!offload::SwapStore::holds_committed(folder)) return 0;
      const auto io = make_engine();
      // The first folder's label names the others by their old paths; to continue they are named.
      std::vector<std::string> places;
      for (const std::string& name : folders_) places.push_back(root + "/" + name);
      const auto store = offload::SwapStore::open({places, {}}, *io, Durability::process,
                                                  nvme::DirectIo::automatic);
      const std::int64_t step = store->committed_step();
      EXPECT_TRUE(holds_step(*store, step)) << "wrong bytes were taken for step " << step;
      return step;
    } catch (const StorageError& error) {
      why_ = error.what();
      return -1;
    }
  }

  // Calls judge(committed, found) for every cut.
  template <typename Judge>
  void at_any_moment(Names names, const Judge& judge) {
    constexpr std::uint64_t kSeed = 20261123;
    std::mt19937_64 random(kSeed + (names == Names::any ? 1 : 0));
    for (std::size_t i = 0; i < cut_count() && !HasFailure(); ++i) {
      const std::size_t count = moment(record_, made_.size(), random);
      const LostPower lost(record_, count);
      const TempDir after;
      lost.write_state(after.path(), names, random);
      why_.clear();
      const std::int64_t found = step_found(after.path());
      SCOPED_TRACE("cut " + std::to_string(i) + " after entry " + std::to_string(count) + " of " +
                   std::to_string(record_.size()) + "; " + why_);
      judge(last_committed(lost.said()), found);
    }
  }

  void expect_last_commit_kept() {
    for (const Names names : {Names::in_order, Names::any}) {
      at_any_moment(names, [&](std::int64_t committed, std::int64_t found) {
        // Before the first commit nothing is promised.
        EXPECT_TRUE(committed == 0 || found >= committed) << "a committed step was lost";
        // Each run may have committed a step and ended before it said so.
        EXPECT_LE(found, committed + runs_);
      });
    }
  }

  TempDir place_;
  TempDir aside_;
  std::vector<std::string> folders_ = {"run"};
  std::vector<Entry> made_;
  std::vector<Entry> record_;
  std::int64_t runs_ = 0;
  mutable std::string why_;
};

TEST_F(PowerLoss, KeepsTheLastCommitWithDurabilityPower) {
  record_runs({{.durability = "power", .steps = 5}, {.durability = "power", .steps = 3}});
  expect_last_commit_kept();
}

TEST_F(PowerLoss, KeepsTheLastCommitOfAStripedStore) {
  folders_ = {"a", "b"};
  record_runs({{.durability = "power", .steps = 3}, {.durability = "power", .steps = 2}});
  expect_last_commit_kept();
}

// A killed run leaves a manifest that a later run sees and the drive does not have yet.
TEST_F(PowerLoss, KeepsTheLastCommitWhenARunWasKilledAtAnyOfItsChanges) {
  TempDir counted;
  std::filesystem::create_directory(counted.file("run"));
  const std::string log = aside_.file("counted");
  ASSERT_EQ(record({.durability = "power", .steps = 2}, counted.path(), log, folders_), 0);
  const std::vector<Entry> whole = read_record(log);
  long changes = 0;
  std::vector<long> renames;
  for (const Entry& entry : whole) {
    if (entry.op != Op::mark) ++changes;
    if (entry.op == Op::rename) renames.push_back(changes);
  }
  ASSERT_EQ(renames.size(), 2U);
  ASSERT_EQ(renames[1], changes - 1)
      << "after the second manifest got its name, its folder is synced";
  for (const long end_before : {changes - 2, changes - 1, changes}) {
    SCOPED_TRACE("killed before change " + std::to_string(end_before));
    std::filesystem::remove(aside_.file("record"));
    made_.clear();
    record_runs({{.durability = "power", .steps = 2, .end_before = end_before},
                 {.durability = "power", .steps = 2}});
    if (HasFatalFailure()) return;
    expect_last_commit_kept();
  }
}

TEST_F(PowerLoss, NeverTakesWrongBytesForGoodWithoutDurabilityPower) {
  for (const char* const durability : {"process", "none"}) {
    SCOPED_TRACE(durability);
    std::filesystem::remove(aside_.file("record"));
    made_.clear();
    record_runs({{.durability = durability, .steps = 4}, {.durability = durability, .steps = 2}});
    if (HasFatalFailure()) return;
    std::size_t lost = 0;
    for (const Names names : {Names::in_order, Names::any}) {
      at_any_moment(names, [&](std::int64_t committed, std::int64_t found) {
        lost += found < committed ? 1 : 0;
      });
    }
    // Else the tests above would pass whatever the store does.
    EXPECT_GT(lost, 0U) << "nothing was ever lost";
  }
}

// Contents of the file `a` in a hundred states after the first `count` entries; "none": it is not
// there.
std::set<std::string> contents_of_a(const std::vector<Entry>& record, std::size_t count) {
  std::mt19937_64 random(7);
  std::set<std::string> found;
  for (int i = 0; i < 100; ++i) {
    const TempDir after;
    LostPower(record, count)
        .write_state(after.path(), i % 2 == 0 ? Names::in_order : Names::any, random);
    std::ifstream file(after.file("a"), std::ios::binary);
    found.insert(file ? std::string(std::istreambuf_iterator<char>(file), {}) : "none");
  }
  return found;
}

TEST(LostPower, KeepsWhatWasSyncedAndAnyPartOfTheRest) {
  using ::testing::ElementsAre;
  const std::string zeros(4, '\0');
  const std::vector<Entry> record = {
      {Op::create, "a", "", 1, 0, ""},     {Op::write, "", "", 1, 0, "old!"},
      {Op::sync_file, "", "", 1, 0, ""},   {Op::sync_folder, "", "", 0, 0, ""},
      {Op::create, "b", "", 2, 0, ""},     {Op::write, "", "", 2, 0, "new!"},
      {Op::rename, "b", "a", 0, 0, ""},    {Op::sync_file, "", "", 2, 0, ""},
      {Op::sync_folder, "", "", 0, 0, ""},
  };
  EXPECT_THAT(contents_of_a(record, 0), ElementsAre("none"));
  EXPECT_THAT(contents_of_a(record, 2), ElementsAre("", zeros, "none", "old!"))
      << "nothing is synced";
  EXPECT_THAT(contents_of_a(record, 3), ElementsAre("none", "old!")) << "the name is not synced";
  EXPECT_THAT(contents_of_a(record, 6), ElementsAre("old!"));
  EXPECT_THAT(contents_of_a(record, 7), ElementsAre("", zeros, "new!", "old!"))
      << "a rename is atomic, bytes are not";
  EXPECT_THAT(contents_of_a(record, 8), ElementsAre("new!", "old!"));
  EXPECT_THAT(contents_of_a(record, 9), ElementsAre("new!"));
}

}  // namespace
}  // namespace sluice::power
