// A store that is striped over several directories: it holds what it held, says where it lies, and
// is not mistaken for another.

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "sluice/offload/directory_lock.hpp"
#include "sluice/offload/scratch_file.hpp"
#include "sluice/offload/swap_directory.hpp"
#include "sluice/offload/swap_store.hpp"
#include "swap_test_support.hpp"

namespace sluice::offload::test {
namespace {

namespace fs = std::filesystem;

class SwapStripeTest : public ::testing::Test {
 protected:
  SwapPlace place() const { return {{a_.path(), b_.path(), c_.path()}, {1, 2, 1}}; }
  std::unique_ptr<SwapStore> create(Durability durability = Durability::process) {
    return SwapStore::create(place(), *engine_, some_shards(), durability,
                             nvme::DirectIo::automatic);
  }
  std::unique_ptr<SwapStore> open(const SwapPlace& at) {
    return SwapStore::open(at, *engine_, Durability::process, nvme::DirectIo::automatic);
  }
  void commit_first(std::int64_t step) {
    const auto store = create();
    update_all(*store, step);
    store->commit(step, "{}");
  }
  VerifyReport verify_all() { return verify(a_.path(), *engine_); }

  TempDir a_;
  TempDir b_;
  TempDir c_;
  std::unique_ptr<nvme::IoEngine> engine_ = make_engine();
};

TEST_F(SwapStripeTest, CommitsAndIsOpenedAgain) {
  {
    const auto store = create();
    for (std::int64_t step = 1; step <= 3; ++step) {
      update_all(*store, step);
      store->commit(step, "{}");
    }
    EXPECT_EQ(difference_from(*store, 3), "");
  }
  for (const TempDir* dir : {&a_, &b_, &c_}) EXPECT_TRUE(fs::exists(dir->file("stripe.json")));
  EXPECT_GT(fs::file_size(c_.file("states.0.part3.swap")), 0U);
  EXPECT_GT(fs::file_size(b_.file("states.0.part2.swap")), fs::file_size(a_.file("states.0.swap")));
  // Who asks a further directory is told the first.
  EXPECT_NE(message_of<StorageError>([&] {
              SwapStore::holds_committed(b_.path());
            }).find("part 2 of 3 of the run in " + a_.path()),
            std::string::npos);
  const auto store = open(place());
  EXPECT_EQ(store->committed_step(), 3);
  EXPECT_EQ(difference_from(*store, 3), "");
  EXPECT_EQ(store->place().weights, (std::vector<unsigned>{1, 2, 1}));
  update_all(*store, 4);
  store->commit(4, "{}");
  EXPECT_EQ(difference_from(*store, 4), "");
}

TEST_F(SwapStripeTest, ForReadingTheFirstDirectoryIsEnough) {
  commit_first(5);
  const auto store = SwapStore::open_read_only(a_.path(), *engine_);
  EXPECT_EQ(difference_from(*store, 5), "");
  EXPECT_TRUE(verify_all().damaged.empty());
}

TEST_F(SwapStripeTest, AllDirectoriesAreLocked) {
  const auto store = create();
  for (const TempDir* dir : {&a_, &b_, &c_}) {
    EXPECT_THROW(DirectoryLock(dir->path(), DirectoryLock::Mode::exclusive), StorageError);
  }
}

TEST_F(SwapStripeTest, DamageIsNamedWithTheDriveThatHasIt) {
  commit_first(1);
  flip_bit(b_.file("states.0.part2.swap"), 4096 + 17, 3);
  const VerifyReport report = verify_all();
  ASSERT_EQ(report.damaged.size(), 1U);
  EXPECT_EQ(report.damaged[0].path, b_.file("states.0.part2.swap"));
  const auto store = open(place());
  const std::vector<std::byte> bytes = read_shard(*store, 0);
  EXPECT_NE(message_of<StorageError>([&] {
              store->check(0, 0, bytes);
            }).find(b_.file("states.0.part2.swap")),
            std::string::npos);
}

TEST_F(SwapStripeTest, APartThatIsCutOffOrAbsentIsNamed) {
  commit_first(1);
  fs::resize_file(c_.file("states.0.part3.swap"), 4096);
  EXPECT_NE(message_of<StorageError>([&] { open(place()); }).find(c_.file("states.0.part3.swap")),
            std::string::npos);
  const VerifyReport cut = verify_all();
  ASSERT_FALSE(cut.damaged.empty());
  EXPECT_NE(cut.damaged.back().path.find(c_.path()), std::string::npos);
  fs::remove(c_.file("states.0.part3.swap"));
  EXPECT_NE(message_of<StorageError>([&] { open(place()); }).find("is absent"), std::string::npos);
  EXPECT_FALSE(verify_all().damaged.empty());
}

TEST_F(SwapStripeTest, DirectoriesInAnotherOrderAreRefused) {
  commit_first(1);
  const std::string order = message_of<StorageError>([&] {
    open({{a_.path(), c_.path(), b_.path()}, {}});
  });
  EXPECT_NE(order.find(c_.path()), std::string::npos) << order;
  EXPECT_NE(order.find("has part 3"), std::string::npos) << order;
  const std::string fewer = message_of<StorageError>([&] { open({{a_.path(), b_.path()}, {}}); });
  EXPECT_NE(fewer.find("striped over"), std::string::npos) << fewer;
  EXPECT_NE(message_of<StorageError>([&] { open(a_.path()); }).find("striped over"),
            std::string::npos);
  const std::string part =
      message_of<StorageError>([&] { SwapStore::open_read_only(b_.path(), *engine_); });
  EXPECT_NE(part.find("name the directories in the order"), std::string::npos) << part;
  const std::string swapped = message_of<StorageError>([&] {
    open({{b_.path(), a_.path(), c_.path()}, {}});
  });
  EXPECT_NE(swapped.find("name the directories in the order"), std::string::npos) << swapped;
}

// A drive may be mounted elsewhere the next time.
TEST_F(SwapStripeTest, APartMayHaveMoved) {
  commit_first(7);
  const TempDir elsewhere;
  for (const char* name : {"states.0.part2.swap", "states.1.part2.swap", "stripe.json", "lock"})
    fs::rename(b_.file(name), elsewhere.file(name));
  EXPECT_NE(message_of<StorageError>([&] { open(place()); }).find("but has none"),
            std::string::npos);
  EXPECT_EQ(difference_from(*open({{a_.path(), elsewhere.path(), c_.path()}, {}}), 7), "");
  // Written down: who only reads finds it now.
  EXPECT_TRUE(verify_all().damaged.empty());
}

TEST_F(SwapStripeTest, ANewStoreTakesNobodysPart) {
  commit_first(1);
  const TempDir fresh;
  const auto taken = [&](const SwapPlace& at) {
    return message_of<StorageError>([&] {
      SwapStore::create(at, *engine_, some_shards(), Durability::process,
                        nvme::DirectIo::automatic);
    });
  };
  EXPECT_NE(taken(b_.path()).find("has part 2 of 3 of the run in " + a_.path()), std::string::npos);
  EXPECT_NE(taken({{fresh.path(), c_.path()}, {}}).find("has part 3 of 3 of the run"),
            std::string::npos);
  EXPECT_NE(taken({{fresh.path(), a_.path()}, {}}).find("committed run of its own"),
            std::string::npos);
  EXPECT_THROW(open({{a_.path(), fresh.path()}, {}}), StorageError);
  EXPECT_TRUE(verify_all().damaged.empty());
  EXPECT_EQ(difference_from(*open(place()), 1), "");
}

TEST_F(SwapStripeTest, ADirectoryIsNamedOnce) {
  EXPECT_THROW(SwapStore::create({{a_.path(), a_.path() + "/."}, {}}, *engine_, some_shards(),
                                 Durability::process, nvme::DirectIo::automatic),
               InvalidArgument);
}

// Killed before its first commit.
TEST_F(SwapStripeTest, WhatWasNeverCommittedIsTakenOver) {
  { const auto store = create(); }
  const TempDir fresh;
  const auto other = SwapStore::create({{fresh.path(), b_.path()}, {}}, *engine_, some_shards(),
                                       Durability::process, nvme::DirectIo::automatic);
  update_all(*other, 1);
  other->commit(1, "{}");
  EXPECT_EQ(difference_from(*other, 1), "");
  EXPECT_THROW(open(place()), StorageError);
}

// A run that begins anew and is killed, or fails, while it removes what an earlier one left.
TEST_F(SwapStripeTest, ABeginningThatStopsHalfwayCanBeRepeated) {
  commit_first(1);
  fs::remove(a_.file("manifest.json"));  // nothing to resume
  const std::string label = b_.file("stripe.json");
  if (::mount(label.c_str(), label.c_str(), nullptr, MS_BIND, nullptr) != 0)
    GTEST_SKIP() << "a file cannot be mounted: " << std::strerror(errno);
  EXPECT_THROW(create(), IoError) << "a mounted file cannot be removed";
  ASSERT_EQ(::umount2(label.c_str(), MNT_DETACH), 0);
  const auto store = create();
  update_all(*store, 2);
  store->commit(2, "{}");
  EXPECT_EQ(difference_from(*store, 2), "");
}

TEST_F(SwapStripeTest, ALabelThatCouldNotBeMarkedIsMarkedByTheNextCommit) {
  const auto store = create();
  update_all(*store, 1);
  const std::string draft = b_.file("stripe.json.tmp");
  fs::create_directory(draft);
  EXPECT_THROW(store->commit(1, "{}"), IoError);
  fs::remove(draft);
  store->commit(1, "{}");
  std::ostringstream label;
  label << std::ifstream(b_.file("stripe.json")).rdbuf();
  EXPECT_NE(label.str().find("\"committed\" : true"), std::string::npos) << label.str();
}

TEST_F(SwapStripeTest, ALostLabelIsNotGuessed) {
  commit_first(1);
  fs::remove(a_.file("stripe.json"));
  EXPECT_NE(message_of<StorageError>([&] { open(place()); }).find("stripe"), std::string::npos);
  EXPECT_THROW(verify_all(), StorageError);
  EXPECT_THROW(clean_directory(a_.path(), CleanScope::leftovers, CleanMode::list), StorageError);
}

TEST_F(SwapStripeTest, ADamagedLabelIsRefused) {
  commit_first(1);
  for (
      const char* text :
      {"", "{", "{}", "[1]", R"({"format": "sluice-stripe", "version": 1})",
       R"({"format": 1, "version": "x"})",
       R"({"format":"sluice-stripe","version":1,"store":"x","part":0,"committed":true,"chunk_bytes":9223372036854775808,"directories":[{"path":"/a","weight":1},{"path":"/b","weight":1}]})",
       R"({"format":"sluice-stripe","version":1,"store":"x","part":0,"committed":true,"chunk_bytes":4096,"directories":[{"path":"","weight":1},{"path":"/b","weight":1}]})"}) {
    write_text(a_.file("stripe.json"), text);
    EXPECT_THROW(open(place()), StorageError) << text;
  }
}

TEST_F(SwapStripeTest, CleaningTheFirstDirectoryClearsAll) {
  commit_first(1);
  const CleanReport kept = clean_directory(a_.path(), CleanScope::leftovers, CleanMode::remove);
  EXPECT_EQ(kept.committed_step, 1);
  EXPECT_EQ(difference_from(*open(place()), 1), "");
  EXPECT_THROW(clean_directory(b_.path(), CleanScope::everything, CleanMode::list), StorageError);
  clean_directory(a_.path(), CleanScope::everything, CleanMode::remove);
  for (const TempDir* dir : {&a_, &b_, &c_}) EXPECT_TRUE(fs::is_empty(dir->path())) << dir->path();
}

// The first drive is not mounted: its mount point is there, and empty. The other drives' bytes are
// needed.
TEST_F(SwapStripeTest, APartIsNeverTakenBecauseTheFirstDriveIsAway) {
  commit_first(1);
  const TempDir away;
  for (const auto& entry : fs::directory_iterator(a_.path()))
    fs::rename(entry.path(), away.path() / entry.path().filename());
  const auto refused = [&](const std::function<void()>& body) {
    EXPECT_NE(message_of<StorageError>(body).find("which is not there now"), std::string::npos);
  };
  refused([&] { create(); });
  EXPECT_THROW(open(place()), StorageError);
  refused([&] { SwapStore::holds_committed(b_.path()); });
  refused([&] { clean_directory(b_.path(), CleanScope::leftovers, CleanMode::remove); });
  refused([&] {
    SwapStore::create(b_.path(), *engine_, some_shards(), Durability::process,
                      nvme::DirectIo::automatic);
  });
  fs::remove(a_.file("lock"));
  for (const auto& entry : fs::directory_iterator(away.path()))
    fs::rename(entry.path(), a_.path() / entry.path().filename());
  EXPECT_EQ(difference_from(*open(place()), 1), "");
  // On request a part is given up when its first directory is not there.
  for (const auto& entry : fs::directory_iterator(a_.path()))
    fs::rename(entry.path(), away.path() / entry.path().filename());
  clean_directory(b_.path(), CleanScope::everything, CleanMode::remove);
  EXPECT_TRUE(fs::is_empty(b_.path()));
}

TEST_F(SwapStripeTest, APartThatCannotBeReachedIsNotSaidToBeAbsent) {
  commit_first(1);
  const TempDir away;
  const std::string moved = away.file("b");
  fs::rename(b_.path(), moved);
  fs::create_symlink(b_.path(), b_.path());  // a loop
  const std::string said = message_of<IoError>([&] { open(place()); });
  EXPECT_NE(said.find(b_.path()), std::string::npos) << said;
  EXPECT_NE(said.find("Too many levels of symbolic links"), std::string::npos) << said;
  fs::remove(b_.path());
  fs::rename(moved, b_.path());
}

TEST_F(SwapStripeTest, ACopyOfTheFirstDirectoryDoesNotHaveTheOthers) {
  commit_first(1);
  const TempDir copy;
  fs::copy(a_.path(), copy.path());
  for (const CleanScope scope : {CleanScope::leftovers, CleanScope::everything}) {
    EXPECT_NE(message_of<StorageError>([&] {
                clean_directory(copy.path(), scope, CleanMode::remove);
              }).find("is a copy of " + a_.path()),
              std::string::npos);
  }
  EXPECT_THROW(open({{copy.path(), b_.path(), c_.path()}, {}}), StorageError);
  EXPECT_EQ(difference_from(*open(place()), 1), "");
}

// File names say that they are of a part; lengths and checksums that they are of this one.
TEST_F(SwapStripeTest, APartWhoseLabelIsLostIsKeptAndFound) {
  commit_first(1);
  fs::remove(b_.file("stripe.json"));
  EXPECT_THROW(clean_directory(b_.path(), CleanScope::leftovers, CleanMode::remove), StorageError);
  EXPECT_THROW(SwapStore::create(b_.path(), *engine_, some_shards(), Durability::process,
                                 nvme::DirectIo::automatic),
               StorageError);
  EXPECT_TRUE(verify_all().damaged.empty());
  EXPECT_EQ(difference_from(*open(place()), 1), "");
  EXPECT_TRUE(fs::exists(b_.file("stripe.json")));
}

TEST_F(SwapStripeTest, LabelsThatDisagreeAreRefused) {
  commit_first(1);
  std::string text = read_text(b_.file("stripe.json"));
  const std::size_t at = text.find("\"weight\" : 2");
  ASSERT_NE(at, std::string::npos);
  text[at + 11] = '3';
  write_text(b_.file("stripe.json"), text);
  EXPECT_NE(message_of<StorageError>([&] { open(place()); }).find("different weights"),
            std::string::npos);
}

TEST_F(SwapStripeTest, WhatStaysOnADriveThatIsAwayIsSaid) {
  commit_first(3);
  const TempDir away;
  fs::rename(c_.file("stripe.json"), away.file("stripe.json"));
  const CleanReport report = clean_directory(a_.path(), CleanScope::everything, CleanMode::remove);
  EXPECT_EQ(report.committed_step, 3);
  EXPECT_EQ(report.missing_directories, std::vector<std::string>{c_.path()});
  EXPECT_TRUE(fs::exists(c_.file("states.0.part3.swap")));
  EXPECT_TRUE(fs::is_empty(b_.path()));
}

// A chunk of checksums is one drive's.
TEST_F(SwapStripeTest, EveryDamagedChunkIsFoundOnItsDrive) {
  commit_first(1);
  const TempDir* const dirs[] = {&a_, &b_, &c_};
  const char* const names[] = {"states.0.swap", "states.0.part2.swap", "states.0.part3.swap"};
  for (int part = 0; part < 3; ++part) {
    const std::string path = dirs[part]->file(names[part]);
    flip_bit(path, 5, 1);
    const VerifyReport report = verify_all();
    ASSERT_EQ(report.damaged.size(), 1U) << path;
    EXPECT_EQ(report.damaged[0].path, path);
    EXPECT_EQ(report.damaged[0].file_offset_bytes, 0U);
    flip_bit(path, 5, 1);
  }
}

TEST_F(SwapStripeTest, AFullDriveIsNamedAndNothingStays) {
  const TempDir tiny;
  const nvme::ScopedMount mounted(tiny.path(), "tmpfs", "size=1m");
  if (!mounted.why_not().empty()) GTEST_SKIP() << mounted.why_not();
  const SwapPlace at{{a_.path(), tiny.path()}, {}};
  const std::string full = message_of<IoError>([&] {
    SwapStore::create(at, *engine_, some_shards(), Durability::process, nvme::DirectIo::automatic);
  });
  EXPECT_NE(full.find(tiny.path()), std::string::npos) << full;
  EXPECT_NE(full.find("are free"), std::string::npos) << full;
  EXPECT_FALSE(fs::exists(a_.file("states.0.swap")));
}

TEST_F(SwapStripeTest, ScratchFilesAreStripedToo) {
  ScratchFile scratch(place(), "spill", 10U << 20U, nvme::DirectIo::automatic);
  const FileRange range = scratch.take(9U << 20U);
  std::vector<std::byte> bytes(range.size_bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 999);
  engine_->begin_write(*range.file, range.offset_bytes, bytes).finish();
  std::vector<std::byte> back(bytes.size());
  engine_->begin_read(*range.file, range.offset_bytes, back).finish();
  EXPECT_TRUE(same_bytes(back, bytes));
  EXPECT_TRUE(fs::exists(c_.file("scratch.spill.swap")));
}

// Bytes written over the life of a directory, over several runs.
TEST_F(SwapStripeTest, CountsWhatIsWrittenInItsLife) {
  std::uint64_t size = 0;
  for (const ShardSpec& shard : some_shards()) size += shard.size_bytes;
  {
    const auto store = create();
    update_all(*store, 1);
    store->commit(1, "{}");
    EXPECT_EQ(store->written_bytes(), size);
  }
  engine_ = make_engine();
  {
    const auto store = open(place());
    update_all(*store, 2);
    store->commit(2, "{}");
  }
  EXPECT_EQ(SwapStore::read_committed(a_.path()).written_bytes, 2 * size);
}

}  // namespace
}  // namespace sluice::offload::test
