#include "sluice/base/fd.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <functional>
#include <future>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "captured_log.hpp"
#include "in_child.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/file/unshared.hpp"
#include "sluice/base/written.hpp"
#include "temp_dir.hpp"

namespace {
thread_local const std::function<void()>* before_close = nullptr;  // of this thread's next one
}  // namespace

// In place of the C library's, for all of this program.
extern "C" int close(int fd) {
  if (const auto* const call = std::exchange(before_close, nullptr)) (*call)();
  return static_cast<int>(::syscall(SYS_close, fd));
}

namespace sluice {
namespace {

int open_null() {
  return ::open("/dev/null", O_RDONLY | O_CLOEXEC);
}
bool is_open(int fd) {
  return ::fcntl(fd, F_GETFD) != -1;
}

TEST(CheckWritten, LeavesTheFileOpenAndNoCopy) {
  const UniqueFd fd(open_null());
  const UniqueFd next(open_null());
  const int free = next.get() + 1;
  check_written(fd.get(), "/dev/null");
  EXPECT_TRUE(is_open(fd.get()));
  EXPECT_FALSE(is_open(free));
}

TEST(CheckWritten, ThrowsWhatTheDriveSaysAtAClose) {
  for (const int error_number : {EIO, ENOSPC}) {
    const std::string said = test::run_in_child([&]() -> std::string {
      const UniqueFd fd(open_null());
      test::deny(__NR_close, error_number);
      check_written(fd.get(), "a/manifest", "make space");
      return "nothing";
    });
    EXPECT_NE(said.find("a/manifest"), std::string::npos) << said;
    EXPECT_NE(said.find("close"), std::string::npos) << said;
    EXPECT_EQ(said.find("make space") != std::string::npos, error_number == ENOSPC) << said;
  }
}

TEST(UniqueFd, IsEmptyByDefault) {
  const UniqueFd fd;
  EXPECT_FALSE(fd);
  EXPECT_EQ(fd.get(), -1);
}

TEST(UniqueFd, ClosesOnDestruction) {
  const int raw = open_null();
  {
    const UniqueFd fd(raw);
    EXPECT_TRUE(fd);
    EXPECT_TRUE(is_open(raw));
  }
  EXPECT_FALSE(is_open(raw));
}

TEST(UniqueFd, MovesTheOwnership) {
  const int raw = open_null();
  UniqueFd from(raw);
  const UniqueFd to(std::move(from));
  EXPECT_FALSE(from);  // NOLINT(bugprone-use-after-move): what a move leaves behind is the subject
  EXPECT_EQ(to.get(), raw);
  EXPECT_TRUE(is_open(raw));
}

TEST(UniqueFd, AssignmentClosesWhatItHeld) {
  const int first = open_null();
  const int second = open_null();
  UniqueFd fd(first);
  fd = UniqueFd(second);
  EXPECT_FALSE(is_open(first));
  EXPECT_TRUE(is_open(second));
}

TEST(UniqueFd, SurvivesAssignmentToItself) {
  const int raw = open_null();
  UniqueFd fd(raw);
  UniqueFd& same = fd;
  fd = std::move(same);
  EXPECT_EQ(fd.get(), raw);
  EXPECT_TRUE(is_open(raw));
}

TEST(UniqueFd, LogsACloseThatFails) {
  const test::CapturedLog log;
  const int raw = open_null();
  UniqueFd fd(raw);
  ::close(raw);
  fd.reset();
  EXPECT_FALSE(fd);
  EXPECT_TRUE(log.contains("close: Bad file descriptor"));
}

TEST(UniqueFd, NamesTheFileWhoseCloseFails) {
  const test::TempDir directory;
  const std::string path = directory.file("states");
  const test::CapturedLog log;
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  const int raw = fd.get();
  const std::function<void()> close_it = [raw] { ::syscall(SYS_close, raw); };
  before_close = &close_it;
  fd.reset();
  EXPECT_TRUE(log.contains(path + ": close: "));
}

// Such a child may live longer than its parent.
TEST(OpenUnshared, AForkedChildDoesNotHaveTheFile) {
  const test::TempDir directory;
  const std::string path = directory.file("lock");
  const UniqueFd fd = open_unshared(path, O_RDWR | O_CREAT, 0600);
  ASSERT_EQ(::flock(fd.get(), LOCK_EX | LOCK_NB), 0);
  const std::string said = test::run_in_child([&]() -> std::string {
    if (!is_open(fd.get())) return "the number is free";  // and could be another file's
    return ::write(fd.get(), "x", 1) == -1 && errno == EBADF ? "nothing" : "the file";
  });
  EXPECT_EQ(said, "nothing");
  EXPECT_NE(::flock(open_unshared(path, O_RDWR).get(), LOCK_EX | LOCK_NB), 0) << "still locked";
}

// As a child of vfork or of clone.
TEST(OpenUnshared, IsUnlockedWhenItIsClosedWhoeverElseHasIt) {
  const test::TempDir directory;
  const std::string path = directory.file("lock");
  UniqueFd fd = open_unshared(path, O_RDWR | O_CREAT, 0600);
  ASSERT_EQ(::flock(fd.get(), LOCK_EX | LOCK_NB), 0);
  const UniqueFd copy(::dup(fd.get()));
  fd.reset();
  EXPECT_EQ(::flock(open_unshared(path, O_RDWR).get(), LOCK_EX | LOCK_NB), 0);
  EXPECT_FALSE(open_unshared(directory.file("absent"), O_RDWR));
  EXPECT_EQ(errno, ENOENT);
}

// Forks. Returns whether the child has the file.
bool has_forked_child(const std::string& path) {
  constexpr int kMostFds = 100;
  return test::run_in_child([&]() -> std::string {
           for (int fd = 0; fd < kMostFds; ++fd)
             if (is_open(fd) && is_file_at(fd, path)) return "yes";
           return "no";
         }) != "no";
}

TEST(OpenUnshared, AChildThatIsForkedDuringTheCloseDoesNotHaveTheFile) {
  constexpr std::chrono::milliseconds kMostWait(300);
  const test::TempDir directory;
  const std::string path = directory.file("lock");
  UniqueFd fd = open_unshared(path, O_RDWR | O_CREAT, 0600);
  std::future<bool> forked;
  const std::function<void()> fork_beside = [&] {
    forked = std::async(std::launch::async, [&] { return has_forked_child(path); });
    forked.wait_for(kMostWait);  // the fork may wait for the end of the close
  };
  before_close = &fork_beside;
  fd.reset();
  EXPECT_FALSE(forked.get());
}

// As a daemon.
TEST(OpenUnshared, AProcessThatHasClosedWhatItInheritedKeepsFilesFromItsChildren) {
  const test::TempDir directory;
  const UniqueFd first = open_unshared(directory.file("first"), O_RDWR | O_CREAT, 0600);
  const std::string other = directory.file("other");
  const std::string said = test::run_in_child([&]() -> std::string {
    constexpr int kMostFds = 100;
    std::vector<UniqueFd> others;
    for (int fd = 3; fd < kMostFds; ++fd) {
      struct stat info {};
      if (::fstat(fd, &info) == 0 && S_ISFIFO(info.st_mode)) continue;  // what is said goes there
      ::close(fd);
    }
    for (int i = 0; i < kMostFds / 2; ++i)
      others.emplace_back(::open(other.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    const UniqueFd second = open_unshared(directory.file("second"), O_RDWR | O_CREAT, 0600);
    return test::run_in_child([&]() -> std::string {
      return is_file_at(second.get(), other) ? "the other file" : "nothing";
    });
  });
  EXPECT_EQ(said, "nothing");
}

// Opens a file without a descriptor left, then another one.
std::string open_second() {
  const test::TempDir directory;
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{0, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &none);
  const bool is_first_open =
      open_unshared(directory.file("first"), O_RDWR | O_CREAT, 0600).get() >= 0;
  const int error_number = errno;
  ::setrlimit(RLIMIT_NOFILE, &before);
  if (is_first_open || error_number != EMFILE) return "the first one is open";
  const UniqueFd fd = open_unshared(directory.file("second"), O_RDWR | O_CREAT, 0600);
  return has_forked_child(directory.file("second")) ? "a child has it" : "no child has it";
}

TEST(OpenUnshared, AfterAShortageOfDescriptorsKeepsFilesFromChildren) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process that has opened no such file so far
  const auto say = [] {
    std::cerr << open_second();
    ::_exit(0);
  };
  EXPECT_EXIT(say(), ::testing::ExitedWithCode(0), "no child has it");
}

}  // namespace
}  // namespace sluice
