// One run in a directory, and no more; readers beside each other.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <optional>
#include <stdexcept>
#include <thread>

#include "captured_log.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "swap_test_support.hpp"

namespace sluice::offload::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Mode = DirectoryLock::Mode;

// A process that holds the directory until it is killed.
class HoldingProcess {
 public:
  HoldingProcess(const std::string& directory, Mode mode) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("pipe");
    pid_ = ::fork();
    if (pid_ == 0) hold(directory, mode, ends[1]);
    ::close(ends[1]);
    char said = 0;
    EXPECT_EQ(::read(ends[0], &said, 1), 1) << "the other process did not get the lock";
    ::close(ends[0]);
  }
  ~HoldingProcess() { kill_now(); }
  HoldingProcess(const HoldingProcess&) = delete;
  HoldingProcess& operator=(const HoldingProcess&) = delete;

  pid_t pid() const { return pid_; }
  void kill_now() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  [[noreturn]] static void hold(const std::string& directory, Mode mode, int ready) {
    try {
      const DirectoryLock lock(directory, mode);
      if (::write(ready, "x", 1) == 1) {
        for (;;) ::pause();
      }
    } catch (const std::exception&) {
    }
    ::_exit(1);
  }
  pid_t pid_ = -1;
};

TEST(DirectoryLock, NamesTheProcessThatHoldsIt) {
  const TempDir dir;
  const HoldingProcess other(dir.path(), Mode::exclusive);
  const std::string said =
      message_of<StorageError>([&] { DirectoryLock(dir.path(), Mode::exclusive); });
  EXPECT_THAT(said, AllOf(HasSubstr(dir.path()), HasSubstr("in use by another run (process " +
                                                           std::to_string(other.pid()) + ")")));
  EXPECT_EQ(said, message_of<StorageError>([&] { DirectoryLock(dir.path(), Mode::shared); }));
}

TEST(DirectoryLock, GoesWithAKilledProcess) {
  const TempDir dir;
  HoldingProcess other(dir.path(), Mode::exclusive);
  other.kill_now();
  EXPECT_NO_THROW(DirectoryLock(dir.path(), Mode::exclusive));
}

TEST(DirectoryLock, IsHeldOnceInOneProcess) {
  const TempDir dir;
  {
    const DirectoryLock first(dir.path(), Mode::exclusive);
    EXPECT_THAT(message_of<StorageError>([&] { DirectoryLock(dir.path(), Mode::exclusive); }),
                HasSubstr("(process " + std::to_string(::getpid()) + ")"));
  }
  EXPECT_NO_THROW(DirectoryLock(dir.path(), Mode::exclusive));
  EXPECT_TRUE(std::filesystem::exists(dir.file("lock"))) << "the file stays";
}

// A child that was forked while `held` was, and that has let go of its own copy where `destroys`.
// It lives until this object ends.
class ForkedChild {
 public:
  ForkedChild(std::optional<DirectoryLock>& held, bool destroys) {
    int ready[2];
    if (::pipe(ends_) != 0 || ::pipe(ready) != 0) throw std::runtime_error("pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends_[1]);
      if (destroys) held.reset();
      char end = 0;
      if (::write(ready[1], "x", 1) == 1 && ::read(ends_[0], &end, 1) == 0) ::_exit(0);
      ::_exit(1);
    }
    char said = 0;
    EXPECT_EQ(::read(ready[0], &said, 1), 1);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~ForkedChild() {
    ::close(ends_[0]);
    ::close(ends_[1]);
    int status = 1;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    EXPECT_EQ(status, 0);
  }
  ForkedChild(const ForkedChild&) = delete;
  ForkedChild& operator=(const ForkedChild&) = delete;

 private:
  int ends_[2] = {};
  pid_t pid_ = -1;
};

TEST(DirectoryLock, IsNotKeptByAForkedChild) {
  const TempDir dir;
  std::optional<DirectoryLock> held(std::in_place, dir.path(), Mode::exclusive);
  const ForkedChild child(held, false);
  EXPECT_THROW(DirectoryLock(dir.path(), Mode::exclusive), StorageError) << "the parent has it";
  held.reset();
  EXPECT_NO_THROW(DirectoryLock(dir.path(), Mode::exclusive));
}

TEST(DirectoryLock, OfAParentStaysWhenAChildLetsGo) {
  const TempDir dir;
  std::optional<DirectoryLock> held(std::in_place, dir.path(), Mode::exclusive);
  const ForkedChild child(held, true);
  EXPECT_THROW(DirectoryLock(dir.path(), Mode::exclusive), StorageError);
}

TEST(DirectoryLock, GoesWithAKilledProcessWhoseChildLives) {
  const TempDir dir;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t run = ::fork();
  if (run == 0) {
    const DirectoryLock lock(dir.path(), Mode::exclusive);
    const pid_t orphan = ::fork();
    if (orphan == 0) ::pause();
    if (::write(ends[1], &orphan, sizeof(orphan)) != sizeof(orphan)) ::_exit(1);
    ::kill(::getpid(), SIGKILL);
  }
  pid_t orphan = -1;
  ASSERT_EQ(::read(ends[0], &orphan, sizeof(orphan)), static_cast<ssize_t>(sizeof(orphan)));
  ::close(ends[0]);
  ::close(ends[1]);
  ::waitpid(run, nullptr, 0);
  // The orphan's first moments may come later.
  EXPECT_NO_THROW(DirectoryLock(dir.path(), Mode::exclusive, {std::chrono::seconds(60), nullptr}));
  ::kill(orphan, SIGKILL);
}

TEST(DirectoryLock, LetsReadersShareAndKeepsRunsOut) {
  const TempDir dir;
  { const DirectoryLock made(dir.path(), Mode::exclusive); }
  {
    // The id in the file is that of a run that has ended, not the reader's.
    write_text(dir.file("lock"), "999999999  \n");
    const HoldingProcess reader(dir.path(), Mode::shared);
    EXPECT_NO_THROW(DirectoryLock(dir.path(), Mode::shared));
    EXPECT_THAT(message_of<StorageError>([&] { DirectoryLock(dir.path(), Mode::exclusive); }),
                AllOf(HasSubstr("another process"), ::testing::Not(HasSubstr("999999999"))));
  }
  EXPECT_NO_THROW(DirectoryLock(dir.path(), Mode::exclusive));
}

TEST(DirectoryLock, NamesADirectoryThatIsAbsentOrNone) {
  const TempDir dir;
  const std::string absent = dir.file("absent");
  EXPECT_THAT(message_of<IoError>([&] { DirectoryLock(absent, Mode::exclusive); }),
              AllOf(HasSubstr(absent), HasSubstr("create it first"), HasSubstr("No such file")));
  write_text(dir.file("plain"), "");
  EXPECT_THAT(message_of<IoError>([&] { DirectoryLock(dir.file("plain"), Mode::exclusive); }),
              AllOf(HasSubstr(dir.file("plain")), HasSubstr("Not a directory")));
  EXPECT_THROW(SwapStore::holds_committed(absent), IoError);
}

// Takes the lock and removes its file, again and again. Empty, or what went wrong.
std::string lock_and_remove(const std::string& directory, int rounds) {
  const std::string owner = directory + "/owner";
  for (int held = 0; held < rounds;) {
    try {
      const DirectoryLock lock(directory, Mode::exclusive);
      const UniqueFd alone(::open(owner.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
      if (!alone) return "two hold the directory at once";
      std::filesystem::remove(owner);
      std::filesystem::remove(directory + "/lock");
      ++held;
    } catch (const StorageError&) {  // another has it
    }
  }
  return "";
}

TEST(DirectoryLock, IsHeldOnceThoughItsFileIsRemoved) {
  const TempDir dir;
  constexpr int kRounds = 10'000;
  const std::string said = nvme::run_in_child([&]() -> std::string {
    const pid_t other = ::fork();
    const std::string wrong = lock_and_remove(dir.path(), kRounds);
    if (other == 0) ::_exit(wrong.empty() ? 0 : 1);
    int status = 0;
    ::waitpid(other, &status, 0);
    return wrong + (status == 0 ? "" : "the other process failed");
  });
  EXPECT_EQ(said, "");
}

TEST(DirectoryLock, LeavesALockOfSomethingElseAsItIs) {
  const TempDir dir;
  const std::string text = "# the lock of another program\n";
  write_text(dir.file("lock"), text);
  for (const Mode mode : {Mode::exclusive, Mode::shared}) {
    EXPECT_THAT(message_of<StorageError>([&] { DirectoryLock(dir.path(), mode); }),
                AllOf(HasSubstr(dir.file("lock")), HasSubstr("is not the lock of a run")));
  }
  EXPECT_EQ(read_text(dir.file("lock")), text);
}

TEST_F(SwapStoreTest, RefusesASecondStoreInOneProcess) {
  const auto store = create();
  EXPECT_THAT(message_of<StorageError>([&] { create(); }),
              HasSubstr("which is this process itself"));
  update_all(*store, 1);
  store->commit(1, "{}");
  EXPECT_THROW(open(), StorageError);
  EXPECT_THROW(SwapStore::open_read_only(dir_.path(), *engine_), StorageError);
  EXPECT_EQ(difference_from(*store, 1), "");
}

TEST_F(SwapStoreTest, AReaderKeepsRunsOut) {
  commit_first(1);
  const auto reader = SwapStore::open_read_only(dir_.path(), *engine_);
  EXPECT_THROW(open(), StorageError);
}

// Becomes a user who owns nothing, in `directory` as the working directory, so that what lies above
// it needs no rights. Empty, or what failed.
std::string become_nobody(const std::string& directory) {
  if (::chdir(directory.c_str()) != 0) return "chdir";
  constexpr uid_t kNobody = 65534;
  if (::geteuid() == 0 && (::setresgid(kNobody, kNobody, kNobody) != 0 ||
                           ::setresuid(kNobody, kNobody, kNobody) != 0)) {
    return "setresuid";
  }
  if (::open("may-not-be", O_CREAT | O_WRONLY | O_CLOEXEC, 0600) >= 0) return "it may write";
  return "";
}

// Makes the directory and what is in it readable, and nothing more, for everybody.
void make_read_only(const std::string& directory) {
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    ASSERT_EQ(::chmod(entry.path().c_str(), 0444), 0);
  }
  ASSERT_EQ(::chmod(directory.c_str(), 0555), 0);
}

// A store at step 6 that its user may only read.
class ReadOnlyStoreTest : public SwapStoreTest {
 protected:
  void SetUp() override {
    SwapStoreTest::SetUp();
    commit_first(6);
    engine_.reset();
  }
  // Returns what `body` says in a process of nobody, whose working directory is the store's.
  std::string said_by_nobody(const std::function<std::string(nvme::IoEngine&)>& body) {
    make_read_only(dir_.path());
    std::string said = nvme::run_in_child([&]() -> std::string {
      std::string failed = become_nobody(dir_.path());
      return failed.empty() ? body(*make_engine()) : failed;
    });
    EXPECT_EQ(::chmod(dir_.path().c_str(), 0755), 0);
    return said;
  }
};

TEST_F(ReadOnlyStoreTest, IsReadByAUserWhoMayNotWrite) {
  const std::string said = said_by_nobody([&](nvme::IoEngine& engine) -> std::string {
    const auto store = SwapStore::open_read_only(".", engine);
    if (!verify(".", engine).damaged.empty()) return "damaged";
    return difference_from(*store, 6) + "step " + std::to_string(store->committed_step());
  });
  EXPECT_EQ(said, "step 6");
}

TEST_F(ReadOnlyStoreTest, IsReadWhereThereIsNoLockFileAndNoneCanBeMade) {
  std::filesystem::remove(dir_.file("lock"));
  const std::string said = said_by_nobody([&](nvme::IoEngine& engine) {
    return difference_from(*SwapStore::open_read_only(".", engine), 6) + "read";
  });
  EXPECT_EQ(said, "read");
}

TEST_F(ReadOnlyStoreTest, SaysSoWhereItMayNotWrite) {
  const std::string said = said_by_nobody([&](nvme::IoEngine& engine) -> std::string {
    try {
      SwapStore::open(".", engine, Durability::process, nvme::DirectIo::automatic);
    } catch (const IoError& error) {
      return error.what();
    }
    return "no error";
  });
  EXPECT_THAT(
      said, AllOf(HasSubstr("opening the directory for writing"), HasSubstr("Permission denied")));
}

using std::chrono::milliseconds;

TEST_F(SwapStoreTest, ALockIsWaitedForAndSaysWhoHasIt) {
  HoldingProcess other(dir_.path(), Mode::exclusive);
  const std::string pid = std::to_string(other.pid());
  const sluice::test::CapturedLog log;
  EXPECT_THAT(message_of<StorageError>([&] {
                const DirectoryLock lock(dir_.path(), Mode::exclusive, {milliseconds(50), nullptr});
              }),
              HasSubstr("process " + pid));
  EXPECT_TRUE(log.contains("waiting until it has ended"));
  std::thread ends([&] {
    std::this_thread::sleep_for(milliseconds(100));
    other.kill_now();
  });
  EXPECT_NO_THROW(DirectoryLock(dir_.path(), Mode::exclusive, {std::chrono::seconds(60), nullptr}));
  ends.join();
}

TEST_F(SwapStoreTest, ASignalEndsTheWaitForALock) {
  const HoldingProcess other(dir_.path(), Mode::exclusive);
  const std::atomic<int> stop = SIGTERM;
  EXPECT_THROW(DirectoryLock(dir_.path(), Mode::exclusive, {std::chrono::hours(1), &stop}),
               Interrupted);
}

TEST_F(SwapStoreTest, WhoHoldsADirectoryOpensItsStoreWithoutASecondLock) {
  HeldDirectories held;
  held.hold(dir_.path());
  held.hold(dir_.path() + "/.");  // by another name
  EXPECT_TRUE(held.holds(dir_.path() + "/"));
  EXPECT_FALSE(held.holds(dir_.file("absent")));
  EXPECT_THROW(SwapStore::create(dir_.path(), *engine_, some_shards(), Durability::process,
                                 nvme::DirectIo::automatic),
               StorageError);
  SwapPlace place(dir_.path());
  place.held = &held;
  const auto store = SwapStore::create(place, *engine_, some_shards(), Durability::process,
                                       nvme::DirectIo::automatic);
  EXPECT_THROW(DirectoryLock(dir_.path(), Mode::shared), StorageError);
}

TEST_F(SwapStoreTest, WhoHeldADirectoryAndMadeNothingLeavesNothing) {
  { HeldDirectories().hold(dir_.path()); }
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
  {
    HeldDirectories held;
    held.hold(dir_.path());
    write_text(dir_.file("notes"), "made meanwhile");
  }
  EXPECT_TRUE(std::filesystem::exists(dir_.file("lock")));
  std::filesystem::remove(dir_.file("notes"));
  { HeldDirectories().hold(dir_.path()); }
  EXPECT_TRUE(std::filesystem::exists(dir_.file("lock"))) << "it was there before";
}

// Short, as a lock is.
TEST_F(SwapStoreTest, AShortFileOfSomethingElseIsNoLockAndLinksAreNotFollowed) {
  write_text(dir_.file("lock"), "precious\n");
  EXPECT_THROW(DirectoryLock(dir_.path(), Mode::exclusive), StorageError);
  std::filesystem::rename(dir_.file("lock"), dir_.file("notes"));
  for (const char* target : {"notes", "absent"}) {
    std::filesystem::create_symlink(target, dir_.file("lock"));
    EXPECT_THROW(DirectoryLock(dir_.path(), Mode::exclusive), StorageError);
    std::filesystem::remove(dir_.file("lock"));
  }
  EXPECT_EQ(std::filesystem::file_size(dir_.file("notes")), 9U);
  EXPECT_FALSE(std::filesystem::exists(dir_.file("absent")));
}

TEST_F(SwapStoreTest, ALockWhoseBytesALossOfPowerMadeZerosIsOne) {
  write_text(dir_.file("lock"), std::string(12, '\0'));
  EXPECT_NO_THROW(DirectoryLock(dir_.path(), Mode::exclusive));
}

}  // namespace
}  // namespace sluice::offload::test
