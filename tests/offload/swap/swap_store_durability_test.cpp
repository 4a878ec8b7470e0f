// The disk operations of each durability, their order, and changes from one durability to another.
//
// This program has its own fsync, fdatasync and rename: they note the call, fail when told, else
// pass it on. Its close() fails when told for a file, as a drive may that took less.

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "swap_test_support.hpp"

namespace sluice::offload::test {
namespace {

// Confined to thread: the test's (the engine's threads call none of the three).
struct Calls {
  std::vector<std::string> made;
  std::size_t failing = SIZE_MAX;  // the index of the call that fails with EIO
  bool noting = false;
  std::string failing_close{};     // the name of the file whose close fails with ENOSPC
  int directory_error_number = 0;  // of each fsync of a directory; 0: none fails

  // Whether the call is to fail.
  bool note(const std::string& what) {
    if (!noting) return false;
    made.push_back(what);
    return made.size() - 1 == failing;
  }
};
Calls calls;  // global, because the hooks below are plain functions

std::string name_of_fd(int fd) {
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd)).filename().string();
}

template <typename Function, typename... Arguments>
int pass_on(const char* name, Arguments... arguments) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name))(arguments...);
}

int fail(int error_number = EIO) {
  errno = error_number;
  return -1;
}

}  // namespace
}  // namespace sluice::offload::test

extern "C" {
int fsync(int fd) {
  using namespace sluice::offload::test;
  if (calls.directory_error_number != 0 &&
      std::filesystem::is_directory("/proc/self/fd/" + std::to_string(fd)))
    return fail(calls.directory_error_number);
  return calls.note("fsync " + name_of_fd(fd)) ? fail() : pass_on<int(int)>("fsync", fd);
}
int close(int fd) {
  using namespace sluice::offload::test;
  const bool fails = !calls.failing_close.empty() && name_of_fd(fd) == calls.failing_close;
  const int result = pass_on<int(int)>("close", fd);
  return fails ? fail(ENOSPC) : result;
}
int fdatasync(int fd) {
  using namespace sluice::offload::test;
  return calls.note("fdatasync " + name_of_fd(fd)) ? fail() : pass_on<int(int)>("fdatasync", fd);
}
int rename(const char* from, const char* to) noexcept {
  using namespace sluice::offload::test;
  const std::string name = std::filesystem::path(to).filename().string();
  return calls.note("rename to " + name)
             ? fail()
             : pass_on<int(const char*, const char*)>("rename", from, to);
}
}

namespace sluice::offload::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SwapStoreDurability : public SwapStoreTest {
 protected:
  void TearDown() override { calls = Calls{}; }
  void start_noting(std::size_t failing = SIZE_MAX) { calls = Calls{{}, failing, true}; }
  std::string directory_name() const {
    return std::filesystem::path(dir_.path()).filename().string();
  }
  // The text of the error that `body` throws while each close of this file fails.
  template <typename Thrown, typename Body>
  std::string said_when_close_fails(const char* file, const Body& body) {
    calls.failing_close = file;
    std::string said = message_of<Thrown>(body);
    calls.failing_close.clear();
    return said;
  }
  std::int64_t committed_on_disk() const { return SwapStore::read_committed(dir_.path()).step; }
};

TEST_F(SwapStoreDurability, ProcessNeedsNoSync) {
  const auto store = create(Durability::process);
  start_noting();
  update_all(*store, 1);
  EXPECT_EQ(store->resumable_step(), 0);
  store->commit(1, "{}");
  EXPECT_EQ(store->resumable_step(), 1);
  store->close_cleanly();
  EXPECT_THAT(calls.made, ElementsAre("rename to manifest.json"));
}

TEST_F(SwapStoreDurability, PowerSyncsDataThenManifestThenRenamesThenSyncsTheDirectory) {
  const auto store = create(Durability::power);
  start_noting();
  update_all(*store, 1);
  store->commit(1, "{}");
  EXPECT_THAT(calls.made, ElementsAre("fdatasync states.0.swap", "fdatasync states.1.swap",
                                      "fsync manifest.json.tmp", "rename to manifest.json",
                                      "fsync " + directory_name()));
}

TEST_F(SwapStoreDurability, AnyCallOfACommitMayFailAndAWholeStepHolds) {
  for (std::size_t failing = 0; failing < 5; ++failing) {
    SCOPED_TRACE(failing);
    std::filesystem::remove(dir_.file("manifest.json"));
    {
      const auto store = create(Durability::power);
      update_all(*store, 1);
      store->commit(1, "{}");
      update_all(*store, 2);
      start_noting(failing);
      EXPECT_THROW(store->commit(2, "{}"), IoError);
      calls = Calls{};
      EXPECT_EQ(store->committed_step(), 1);
      EXPECT_FALSE(std::filesystem::exists(dir_.file("manifest.json.tmp")));
    }
    const auto store = open(Durability::power);
    EXPECT_EQ(store->committed_step(), failing == 4 ? 2 : 1)
        << "once renamed, the new manifest is what a reader sees";
    EXPECT_EQ(difference_from(*store, store->committed_step()), "");
  }
}

TEST_F(SwapStoreDurability, ACommitInDoubtForbidsWritesUntilOneSucceeds) {
  const auto store = create(Durability::power);
  update_all(*store, 1);
  store->commit(1, "{}");
  update_all(*store, 2);
  start_noting(4);
  EXPECT_THROW(store->commit(2, "{}"), IoError);
  // The slot of step 1 is the one that a write would go to if step 2 were taken for committed, and
  // that of step 2 if not; loss of power decides which is needed.
  EXPECT_THAT(message_of<StorageError>([&] { update_all(*store, 3); }), HasSubstr("in doubt"));
  store->commit(2, "{}");
  update_all(*store, 3);
  store->commit(3, "{}");
  EXPECT_EQ(difference_from(*store, 3), "");
}

TEST_F(SwapStoreDurability, NothingIsPreparedAfterAFirstPhaseThatFailed) {
  const auto store = create(Durability::power);
  update_all(*store, 1);
  store->commit(1, "{}");
  for (std::size_t failing = 2; failing < 5; ++failing) {  // before, a sync of data fails for good
    SCOPED_TRACE(failing);
    update_all(*store, 2);
    start_noting(failing);
    EXPECT_THROW(store->prepare_commit(2, "{}"), IoError);
    EXPECT_EQ(calls.made.size(), failing + 1);
    calls = Calls{};
    EXPECT_FALSE(std::filesystem::exists(dir_.file("manifest.prepared.json")));
  }
  update_all(*store, 2);
  store->prepare_commit(2, "{}");
  store->finish_commit();
  EXPECT_EQ(difference_from(*store, 2), "");
}

TEST_F(SwapStoreDurability, APreparedCommitIsNotTakenBackByALaterOne) {
  const auto store = create(Durability::power);
  update_all(*store, 1);
  const std::uint64_t digest = store->prepare_commit(1, "{}");
  const auto refused = HasSubstr("end this run and resume");
  EXPECT_THAT(message_of<StorageError>([&] { store->prepare_commit(2, "{}"); }), refused);
  EXPECT_THAT(message_of<StorageError>([&] { store->commit(2, "{}"); }), refused);
  EXPECT_THAT(message_of<StorageError>([&] { update_all(*store, 2); }), refused);
  EXPECT_EQ(SwapStore::read_committed(dir_.path(), digest).step, 1);
}

TEST_F(SwapStoreDurability, NoneUsesOneFileAndCommitsOnClosing) {
  {
    const auto store = create(Durability::none);
    for (std::int64_t step = 1; step <= 3; ++step) {
      update_all(*store, step);
      store->commit(step, "{\"step\": " + std::to_string(step) + "}");
      EXPECT_EQ(store->committed_step(), step);
      EXPECT_EQ(store->resumable_step(), 0);
      EXPECT_EQ(difference_from(*store, step), "");
      EXPECT_FALSE(SwapStore::holds_committed(dir_.path()));
    }
    store->close_cleanly();
    store->close_cleanly();
    EXPECT_EQ(store->resumable_step(), 3);
  }
  EXPECT_EQ(SwapStore::list_files(dir_.path()),
            (std::vector<std::string>{dir_.file("manifest.json"), dir_.file("states.0.swap")}));
  EXPECT_EQ(SwapStore::read_committed(dir_.path()).durability, Durability::none);
  const auto store = open(Durability::none);
  EXPECT_EQ(store->committed_metadata(), "{\"step\": 3}");
  EXPECT_EQ(difference_from(*store, 3), "");
}

TEST_F(SwapStoreDurability, NoneRemovesTheManifestForGoodBeforeTheFirstWrite) {
  commit_first(1);
  const auto store = open(Durability::none);
  EXPECT_EQ(difference_from(*store, 1), "");
  EXPECT_TRUE(SwapStore::holds_committed(dir_.path())) << "reading changes nothing";
  EXPECT_EQ(store->resumable_step(), 1);
  start_noting();
  update_all(*store, 2);
  EXPECT_EQ(store->resumable_step(), 0);
  EXPECT_THAT(calls.made, ElementsAre("fsync " + directory_name())) << "once";
  EXPECT_FALSE(SwapStore::holds_committed(dir_.path()));
}

TEST_F(SwapStoreDurability, NoneWritesNothingWhenTheManifestCannotBeRemovedForGood) {
  commit_first(1);
  {
    const auto store = open(Durability::none);
    start_noting(0);
    EXPECT_THROW(update_all(*store, 2), IoError);
    calls = Calls{};
    EXPECT_EQ(difference_from(*store, 1), "");
    store->close_cleanly();
  }
  EXPECT_EQ(difference_from(*open(), 1), "");
}

TEST_F(SwapStoreDurability, NoneRefusesToCloseOverUncommittedWrites) {
  const auto store = create(Durability::none);
  store->close_cleanly();
  EXPECT_FALSE(SwapStore::holds_committed(dir_.path())) << "nothing was committed";
  update_all(*store, 1);
  store->commit(1, "{}");
  update_shard(*store, 1, 2);
  EXPECT_THAT(message_of<InvalidArgument>([&] { store->close_cleanly(); }),
              HasSubstr("\"blocks.0.norm\" was written after the last commit"));
  EXPECT_FALSE(SwapStore::holds_committed(dir_.path()));
  store->commit(2, "{}");
  store->close_cleanly();
  EXPECT_EQ(committed_on_disk(), 2);
}

TEST_F(SwapStoreDurability, NoneRemembersACommitThatWroteNothing) {
  commit_first(1);
  {
    const auto store = open(Durability::none);
    store->commit(2, "{}");
    EXPECT_EQ(committed_on_disk(), 1);
    store->close_cleanly();
  }
  EXPECT_EQ(committed_on_disk(), 2);
  EXPECT_EQ(difference_from(*open(), 1), "");
}

TEST_F(SwapStoreDurability, MayChangeBetweenRuns) {
  const std::array kinds = {Durability::process, Durability::power, Durability::none};
  std::int64_t step = 1;
  commit_first(step);
  std::mt19937 random(99);
  for (int i = 0; i < 12; ++i) {
    const auto store = open(kinds.at(random() % kinds.size()));
    ASSERT_EQ(store->committed_step(), step);
    ASSERT_EQ(difference_from(*store, step), "");
    const int updates = static_cast<int>(random() % 4);
    for (int update = 0; update < updates; ++update) {
      ++step;
      update_all(*store, step);
      store->commit(step, "{}");
    }
    ASSERT_EQ(difference_from(*store, step), "");
    store->close_cleanly();
  }
}

TEST_F(SwapStoreDurability, NoneGoesOnInWhicheverSlotEachShardIsCommitted) {
  commit_first(1);
  {
    const auto store = open(Durability::process);
    update_shard(*store, 0, 2);  // now in slot 1, the others in slot 0
    store->commit(2, "{}");
  }
  {
    const auto store = open(Durability::none);
    update_all(*store, 3);
    store->commit(3, "{}");
    store->close_cleanly();
  }
  const auto store = open(Durability::process);
  EXPECT_EQ(difference_from(*store, 3), "");
}

TEST_F(SwapStoreDurability, AManifestOrWithPowerStatesThatTheDriveDidNotTakeAreNotCommitted) {
  commit_first(1);
  for (const Durability durability : {Durability::process, Durability::power}) {
    const auto store = open(durability);
    update_all(*store, 2);
    EXPECT_THAT(
        said_when_close_fails<IoError>("manifest.json.tmp", [&] { store->commit(2, "{}"); }),
        AllOf(HasSubstr("manifest.json.tmp"),
              HasSubstr("(make space; what was committed before is whole)")));
    EXPECT_FALSE(std::filesystem::exists(dir_.file("manifest.json.tmp")));
    if (durability == Durability::power)
      said_when_close_fails<IoError>("states.1.swap", [&] { store->commit(2, "{}"); });
    EXPECT_EQ(committed_on_disk(), 1);
  }
}

// So are the files of a checkpoint made, whatever the run's durability is.
TEST_F(SwapStoreDurability, AFullDiskAtTheOnlyManifestSaysNothingOfDurability) {
  const auto store = create(Durability::none);
  update_all(*store, 1);
  store->commit(1, "{}");
  EXPECT_THAT(said_when_close_fails<IoError>("manifest.json.tmp", [&] { store->close_cleanly(); }),
              HasSubstr("(make space; nothing was committed here before)"));
}

// As the files of a checkpoint on a keeper that uploads at the close.
TEST_F(SwapStoreDurability, NoManifestNamesStatesThatTheDriveDidNotTake) {
  for (const bool in_two_phases : {false, true}) {
    const auto store = create(Durability::none);
    update_all(*store, 1);
    store->commit(1, "{}");
    const auto end = [&] {
      in_two_phases ? void(store->prepare_commit(1, "{}")) : store->close_cleanly();
    };
    EXPECT_THAT(said_when_close_fails<IoError>("states.0.swap", end),
                AllOf(HasSubstr(dir_.file("states.0.swap")), HasSubstr("close")));
    EXPECT_FALSE(SwapStore::holds_committed(dir_.path()));
    EXPECT_FALSE(std::filesystem::exists(dir_.file("manifest.prepared.json")));
  }
}

TEST_F(SwapStoreDurability, AnOrderlyEndSaysWhichStatesTheDriveDidNotTakeAndHowToLook) {
  commit_first(1);
  const auto store = open(Durability::process);
  EXPECT_THAT(said_when_close_fails<StorageError>("states.0.swap", [&] { store->close_cleanly(); }),
              AllOf(HasSubstr(dir_.file("states.0.swap")),
                    HasSubstr("sluice nvme verify " + dir_.path() + " tells whether step 1 is")));
}

TEST_F(SwapStoreDurability, AFileSystemThatSyncsNoDirectoryKeepsWhatNeedsNoPower) {
  commit_first(1);
  for (const int error_number : {EINVAL, ENOTSUP}) {
    calls.directory_error_number = error_number;
    {
      const auto store = open(Durability::none);
      update_all(*store, 2);
      store->commit(2, "{}");
      store->close_cleanly();
    }
    EXPECT_EQ(committed_on_disk(), 2);
    EXPECT_THAT(message_of<StorageError>([&] { open(Durability::power); }),
                AllOf(HasSubstr(dir_.path()), HasSubstr("cannot sync a directory"),
                      HasSubstr("\"durability\": \"process\"")));
  }
  std::filesystem::remove(dir_.file("manifest.json"));
  EXPECT_THROW(create(Durability::power), StorageError);
  calls.directory_error_number = EIO;
  EXPECT_THROW(create(Durability::power), IoError) << "a failure, which no file system means";
}

TEST_F(SwapStoreDurability, FromNoneToProcessAllocatesTheSecondSlot) {
  {
    const auto store = create(Durability::none);
    update_all(*store, 1);
    store->commit(1, "{}");
    store->close_cleanly();
  }
  const auto store = open(Durability::process);
  EXPECT_EQ(std::filesystem::file_size(dir_.file("states.1.swap")),
            std::filesystem::file_size(dir_.file("states.0.swap")));
  update_all(*store, 2);
  EXPECT_EQ(committed_on_disk(), 1) << "the manifest holds until the commit";
  store->commit(2, "{}");
  EXPECT_EQ(difference_from(*store, 2), "");
}

}  // namespace
}  // namespace sluice::offload::test
