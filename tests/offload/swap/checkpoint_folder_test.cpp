// Clearing a directory of checkpoints, and one checkpoint.

#include "sluice/offload/checkpoint_folder.hpp"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "captured_log.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "sluice/offload/swap_directory.hpp"
#include "sluice/offload/swap_store.hpp"
#include "swap_test_support.hpp"

// This program has its own rmdir(). As FUSE and NFS do, it may keep a folder of which this process
// has a file open, removed or not.
namespace {
bool keeps_folders_of_open_files = false;
int late_removals = 0;  // so many calls find a folder not empty yet

bool has_open_file_in(const std::string& folder) {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const std::string path = std::filesystem::read_symlink(entry.path(), none).string();
    if (path.rfind(folder + "/", 0) == 0) return true;
  }
  return false;
}
}  // namespace
extern "C" int rmdir(const char* path) noexcept {
  using Call = int(const char*);
  static auto* const call = reinterpret_cast<Call*>(::dlsym(RTLD_NEXT, "rmdir"));
  const bool late = keeps_folders_of_open_files && late_removals > 0 && late_removals-- > 0;
  if (late || (keeps_folders_of_open_files && has_open_file_in(path))) {
    errno = ENOTEMPTY;
    return -1;
  }
  return call(path);
}

namespace sluice::offload::test {
namespace {

namespace fs = std::filesystem;

using sluice::test::CapturedLog;
using ::testing::ElementsAre;

TEST(CheckpointFolder, IsToldByItsName) {
  const auto folder = checkpoint_folder_of(checkpoint_path("/a", 26));
  ASSERT_TRUE(folder.has_value());
  EXPECT_EQ(folder->path, "/a/step-00000026");
  EXPECT_EQ(folder->step, 26);
  EXPECT_EQ(folder->number, 1);
  EXPECT_FALSE(folder->is_draft);
  EXPECT_TRUE(checkpoint_folder_of(checkpoint_draft_path("/a", 26))->is_draft);
  const auto second = checkpoint_folder_of("/a/step-00000026.2");
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->step, 26);
  EXPECT_EQ(second->number, 2);
  EXPECT_FALSE(second->is_draft);
  for (const char* path : {"/a/step-", "/a/step-.tmp", "/a/step-1a", "/a/step--1", "/a/step-1.tmp2",
                           "/a/step-1.1", "/a/step-1.2.tmp", "/a/step-1.", "/a/step-1.2x",
                           "/a/step-00000026/states.0.swap", "/a/estep-1"}) {
    EXPECT_FALSE(checkpoint_folder_of(path).has_value()) << path;
  }
}

TEST(CheckpointFolder, AFreeNameIsThatOfNoFileAndNoFolder) {
  const TempDir dir;
  EXPECT_EQ(free_checkpoint_path(dir.path(), 4), dir.file("step-00000004"));
  fs::create_directory(dir.file("step-00000004"));
  EXPECT_EQ(free_checkpoint_path(dir.path(), 4), dir.file("step-00000004.2"));
  write_text(dir.file("step-00000004.2"), "a file");
  EXPECT_EQ(free_checkpoint_path(dir.path(), 4), dir.file("step-00000004.3"));
}

// A directory of checkpoints: whole ones of steps 3 and 12, and one that a killed run did not
// finish.
class CheckpointsTest : public SwapStoreTest {
 protected:
  CheckpointsTest() {
    for (const int step : {3, 12}) commit_into(checkpoint_path(dir_.path(), step), step);
    leave_draft(15);
  }
  void commit_into(const std::string& folder, std::int64_t step) {
    fs::create_directory(folder);
    const auto store = SwapStore::create(folder, *engine_, some_shards(), Durability::none,
                                         nvme::DirectIo::automatic);
    update_all(*store, step);
    store->commit(step, "{}");
    store->close_cleanly();
  }
  void leave_draft(std::int64_t step) {
    const std::string folder = checkpoint_draft_path(dir_.path(), step);
    fs::create_directory(folder);
    write_text(folder + "/lock", "12345      \n");
    write_text(folder + "/states.0.swap", std::string(10'000, 'x'));
  }
  std::vector<std::string> below(const std::string& name) const {
    return names_in(dir_.file(name));
  }

  const std::string draft_ = "step-00000015.tmp";
};

TEST_F(CheckpointsTest, LosesOnlyWhatWasNotFinished) {
  EXPECT_THAT(clean(CleanScope::leftovers, CleanMode::list),
              ElementsAre("states.0.swap", "lock", draft_));
  EXPECT_TRUE(fs::exists(dir_.file(draft_)));
  EXPECT_THAT(clean(CleanScope::leftovers), ElementsAre("states.0.swap", "lock", draft_));
  EXPECT_TRUE(report_.files.back().is_folder);
  EXPECT_EQ(report_.files.front().size_bytes, 10'000U);
  EXPECT_EQ(report_.committed_step, std::nullopt);
  EXPECT_THAT(report_.checkpoint_steps, ElementsAre(3, 12));
  EXPECT_THAT(names_there(), ElementsAre("step-00000003", "step-00000012"));
  const auto store = SwapStore::open_read_only(dir_.file("step-00000012"), *engine_);
  EXPECT_EQ(difference_from(*store, 12), "");
}

TEST_F(CheckpointsTest, AreRemovedWithTheirFoldersTheManifestOfEachFirst) {
  const std::vector<std::string> listed = clean(CleanScope::everything, CleanMode::list);
  EXPECT_THAT(listed, ElementsAre("manifest.json", "states.0.swap", "lock", "step-00000003",
                                  "manifest.json", "states.0.swap", "lock", "step-00000012",
                                  "states.0.swap", "lock", draft_));
  EXPECT_EQ(listed, clean(CleanScope::everything));
  EXPECT_THAT(report_.checkpoint_steps, ElementsAre(3, 12));
  EXPECT_TRUE(names_there().empty());
}

class CheckpointsOnFuse : public CheckpointsTest {
 protected:
  void SetUp() override { keeps_folders_of_open_files = true; }
  void TearDown() override { keeps_folders_of_open_files = false; }
};

TEST_F(CheckpointsOnFuse, AreRemovedWithTheirFolders) {
  clean(CleanScope::everything);
  EXPECT_TRUE(names_there().empty());
  commit_into(dir_.file("step-00000003"), 3);
  clean_directory(dir_.file("step-00000003"), CleanScope::everything, CleanMode::remove);
  EXPECT_TRUE(names_there().empty());
}

// The server hears of a close a moment later.
TEST_F(CheckpointsOnFuse, AFolderGoesWhenTheRemovedFilesHaveLeftIt) {
  late_removals = 3;
  EXPECT_EQ(clean(CleanScope::leftovers).back(), draft_);
  EXPECT_THAT(names_there(), ElementsAre("step-00000003", "step-00000012"));
}

TEST_F(CheckpointsOnFuse, AFolderThatStaysIsNotSaidToBeRemoved) {
  const UniqueFd open(::open(dir_.file("step-00000012/states.0.swap").c_str(), O_RDONLY));
  EXPECT_THAT(
      clean(CleanScope::everything),
      ElementsAre("manifest.json", "states.0.swap", "lock", "step-00000003", "manifest.json",
                  "states.0.swap", "lock", "states.0.swap", "lock", draft_));
  EXPECT_THAT(report_.checkpoint_steps, ElementsAre(3, 12));
  EXPECT_THAT(names_there(), ElementsAre("step-00000012"));
  EXPECT_TRUE(below("step-00000012").empty());
}

TEST_F(CheckpointsTest, OneIsRemovedWithItsFolder) {
  const std::string folder = dir_.file("step-00000003");
  const CleanReport report = clean_directory(folder, CleanScope::everything, CleanMode::remove);
  EXPECT_EQ(report.committed_step, 3);
  EXPECT_EQ(report.files.back().path, folder);
  EXPECT_THAT(names_there(), ElementsAre("step-00000012", draft_));
}

// The manifest may come back from a backup.
TEST_F(CheckpointsTest, OneThatLostItsManifestIsNoLeftover) {
  fs::remove(dir_.file("step-00000003/manifest.json"));
  EXPECT_THAT(clean(CleanScope::leftovers), ElementsAre("states.0.swap", "lock", draft_));
  EXPECT_THAT(report_.checkpoint_steps, ElementsAre(12));
  EXPECT_THAT(below("step-00000003"), ElementsAre("lock", "states.0.swap"));
  clean(CleanScope::everything);
  EXPECT_TRUE(names_there().empty());
}

TEST_F(CheckpointsTest, AManifestThatIsNoFileIsNotWaitedFor) {
  const std::string manifest = dir_.file("step-00000003/manifest.json");
  fs::remove(manifest);
  ASSERT_EQ(::mkfifo(manifest.c_str(), 0600), 0);
  clean(CleanScope::everything);
  EXPECT_THAT(names_there(), ElementsAre("step-00000003"));
}

TEST_F(CheckpointsTest, LeaveAloneWhatIsNotOurs) {
  write_text(dir_.file(draft_ + "/notes"), "mine");
  write_text(dir_.file("step-00000003/notes"), "mine");
  for (const char* name : {"step-archived", "step-7", "step-9.tmp", "step-00000015.tmp.old"}) {
    fs::create_directory(dir_.file(name));
    write_text(dir_.file(name + std::string("/notes")), "mine");
  }
  write_text(dir_.file("step-7/manifest.json"), "{\"name\": \"an application\"}");
  write_text(dir_.file("step-9.tmp/lock"), "a text that is longer than a lock");
  fs::create_directory_symlink(dir_.file("step-archived"), dir_.file("step-8.tmp"));
  clean(CleanScope::everything);
  EXPECT_THAT(names_there(), ElementsAre("step-00000003", draft_, "step-00000015.tmp.old", "step-7",
                                         "step-8.tmp", "step-9.tmp", "step-archived"));
  for (const std::string& name : {draft_, std::string("step-00000003")})
    EXPECT_THAT(below(name), ElementsAre("notes"));
  EXPECT_THAT(below("step-7"), ElementsAre("manifest.json", "notes"));
  EXPECT_THAT(below("step-9.tmp"), ElementsAre("lock", "notes"));
}

// As when a newer one takes its place.
TEST_F(CheckpointsTest, AreRemovedWithoutWhatIsNotOurs) {
  const std::string folder = dir_.file("step-00000003");
  for (const char* name : {"rank0-of-2", "rank1-of-2", "hf"})
    fs::create_directory(folder + "/" + name);
  for (const char* name : {"ranks.json", "rank0-of-2/manifest.json", "rank0-of-2/states.1.swap",
                           "rank1-of-2/notes", "hf/manifest.json", "notes"})
    write_text(folder + "/" + name, "x");
  fs::create_symlink(dir_.file("step-00000012"), folder + "/rank2-of-3");
  RemovedCheckpoint removed = remove_checkpoint_files(folder);
  EXPECT_FALSE(removed.error) << removed.error.message();
  std::sort(removed.left.begin(), removed.left.end());
  EXPECT_THAT(removed.left,
              ElementsAre(folder + "/hf", folder + "/notes", folder + "/rank1-of-2/notes"));
  EXPECT_THAT(below("step-00000003"), ElementsAre("hf", "notes", "rank1-of-2"));
  EXPECT_THAT(below("step-00000003/hf"), ElementsAre("manifest.json"));
  fs::create_directory_symlink(dir_.file("step-00000012"), dir_.file("step-00000011"));
  for (const std::string& name : {std::string("step-00000011"), draft_}) {
    removed = remove_checkpoint_files(dir_.file(name));
    EXPECT_FALSE(removed.error) << removed.error.message();
    EXPECT_TRUE(removed.left.empty());
  }
  EXPECT_THAT(names_there(), ElementsAre("step-00000003", "step-00000012"));
  EXPECT_THAT(below("step-00000012"), ElementsAre("lock", "manifest.json", "states.0.swap"));
}

TEST_F(CheckpointsTest, AreFoundAroundAPath) {
  const std::string folder = fs::canonical(dir_.file("step-00000012"));
  for (const char* path : {"", "/manifest.json", "/hf/model/weights", "/.", "/../step-00000012/a"})
    EXPECT_EQ(checkpoint_around(folder + path), folder) << path;
  fs::create_directory(dir_.file("step-7"));
  for (const char* path : {"", "step-7", "step-7/report", "step-00000099/report"})
    EXPECT_EQ(checkpoint_around(dir_.file(path)), "") << path;
}

TEST_F(CheckpointsTest, StayWhileOneIsReadOrARunHasThem) {
  const std::vector<std::string> before = names_there();
  {
    const auto reader = SwapStore::open_read_only(dir_.file("step-00000012"), *engine_);
    EXPECT_THROW(clean(CleanScope::everything), StorageError);
  }
  const DirectoryLock run(dir_.path(), DirectoryLock::Mode::exclusive);
  EXPECT_THROW(clean(CleanScope::leftovers), StorageError);
  fs::remove(dir_.file("lock"));
  EXPECT_EQ(names_there(), before);
  EXPECT_THAT(below("step-00000003"), ElementsAre("lock", "manifest.json", "states.0.swap"));
}

TEST_F(CheckpointsTest, ThatWereNotFinishedAreRemovedByTheNextRunWithOneLine) {
  leave_draft(2);
  const DirectoryLock lock(dir_.path(), DirectoryLock::Mode::exclusive);
  CapturedLog log;
  remove_dead_checkpoints(dir_.path());
  EXPECT_THAT(names_there(), ElementsAre("lock", "step-00000003", "step-00000012"));
  ASSERT_EQ(log.messages().size(), 1U);
  EXPECT_TRUE(log.contains("removed 2 checkpoints (")) << log.messages()[0].text;
  EXPECT_TRUE(log.contains("that an earlier run did not finish"));
  remove_dead_checkpoints(dir_.path());
  EXPECT_EQ(log.messages().size(), 1U) << "nothing removed, nothing said";
}

// A run gives a checkpoint the name of a draft, and then removes it. A lock is the last to go.
TEST_F(CheckpointsTest, WhoseRemovalWasKilledGoWithTheNextRun) {
  fs::rename(dir_.file("step-00000003"), dir_.file("step-00000003.tmp"));
  for (const char* name : {"step-00000001", "step-00000002"}) fs::create_directory(dir_.file(name));
  write_text(dir_.file("step-00000002/lock"), "12345      \n");
  fs::create_directory(dir_.file("step-00000005"));
  write_text(dir_.file("step-00000005/notes"), "mine");
  const DirectoryLock lock(dir_.path(), DirectoryLock::Mode::exclusive);
  remove_dead_checkpoints(dir_.path());
  EXPECT_THAT(names_there(), ElementsAre("lock", "step-00000005", "step-00000012"));
}

}  // namespace
}  // namespace sluice::offload::test
