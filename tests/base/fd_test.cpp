#include "sluice/base/fd.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "captured_log.hpp"

namespace sluice {
namespace {

int open_null() {
  return ::open("/dev/null", O_RDONLY | O_CLOEXEC);
}
bool is_open(int fd) {
  return ::fcntl(fd, F_GETFD) != -1;
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

}  // namespace
}  // namespace sluice
