#include "sluice/base/error.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <exception>
#include <string>

#include "in_child.hpp"
#include "message_of.hpp"
#include "sluice/base/rank_failure.hpp"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(OutOfMemory, CarriesTierAndBytes) {
  const OutOfMemory error("host", 2048, 1024, "gradients");
  EXPECT_EQ(error.tier(), "host");
  EXPECT_EQ(error.requested_bytes(), 2048U);
  EXPECT_EQ(error.available_bytes(), 1024U);
  EXPECT_STREQ(error.what(), "gradients: 2.00 KiB requested on tier host, 1.00 KiB available");
}

TEST(IoError, SaysWhereHowMuchAndWhatToDo) {
  const IoError error(ENOSPC, "write", "/data/a", 4096, 512, "free some space");
  EXPECT_EQ(error.code().value(), ENOSPC);
  EXPECT_EQ(error.path(), "/data/a");
  EXPECT_EQ(error.offset_bytes(), 4096U);
  EXPECT_EQ(error.size_bytes(), 512U);
  EXPECT_THAT(error.what(), HasSubstr("/data/a: write of 512 bytes at offset 4096"));
  EXPECT_THAT(error.what(), HasSubstr("free some space"));
  EXPECT_THAT(error.what(), HasSubstr("No space left"));
}

TEST(IoError, OfAFileTooLargeNamesTheLimit) {
  const auto text = [](rlim_t limit) {
    return test::run_in_child([limit] {
      test::limit_resource(RLIMIT_FSIZE, limit);
      return std::string(IoError(EFBIG, "pwrite", "/data/a", 0, 4096, "as it is").what());
    });
  };
  EXPECT_THAT(text(rlim_t{1} << 20U), AllOf(HasSubstr("(as it is; "), HasSubstr("1.00 MiB"),
                                            HasSubstr("ulimit -f"), HasSubstr("File too large")));
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to raise a limit";
  EXPECT_THAT(text(RLIM_INFINITY), AllOf(HasSubstr("file system"), Not(HasSubstr("ulimit"))));
}

TEST(IoError, OfALimitSaysHowToRaiseIt) {
  const std::string files = IoError(EMFILE, "open", "/data/a").what();
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_THAT(files, HasSubstr("may open " + std::to_string(limit.rlim_cur) +
                               " files: raise the limit (ulimit -n)"));
  EXPECT_THAT(IoError(ENFILE, "open", "/data/a").what(), HasSubstr("fs.file-max"));
  EXPECT_THAT(IoError(ENOLCK, "flock", "/data/a", 0, 0, "as it is").what(),
              HasSubstr("(as it is; the file system or its server takes no more locks"));
  for (const int error_number : {ENOSYS, EOPNOTSUPP}) {
    EXPECT_THAT(IoError(error_number, "flock", "/data/a").what(), HasSubstr("-o flock"));
    EXPECT_THAT(IoError(error_number, "fallocate", "/data/a").what(), Not(HasSubstr("lock")));
  }
  EXPECT_THAT(IoError(EBADF, "write", "/data/a").what(), HasSubstr("the other direction"));
}

TEST(StorageError, NamesThePath) {
  const StorageError error("/data/a", "damaged");
  EXPECT_EQ(error.path(), "/data/a");
  EXPECT_STREQ(error.what(), "/data/a: damaged");
}

TEST(Interrupted, TellsInterruptFromTermination) {
  EXPECT_STREQ(Interrupted(SIGINT).what(), "interrupted");
  EXPECT_STREQ(Interrupted(SIGTERM).what(), "terminated");
  EXPECT_STREQ(Interrupted(SIGHUP).what(), "the terminal was closed");
  EXPECT_EQ(Interrupted(SIGTERM).signal_number(), SIGTERM);
}

TEST(Check, BuildsItsMessageOnFailureOnly) {
  int built = 0;
  const auto message = [&] {
    ++built;
    return std::string("too many");
  };
  SLUICE_CHECK(true, message());
  EXPECT_EQ(built, 0);
  EXPECT_EQ(test::message_of<InvalidArgument>([&] { SLUICE_CHECK(false, message()); }), "too many");
  EXPECT_EQ(built, 1);
}

TEST(Syscall, ThrowsWithPathAndErrno) {
  const std::string path = "/nonexistent/file";
  try {
    SLUICE_SYSCALL(::open(path.c_str(), O_RDONLY), path);
    FAIL() << "did not throw";
  } catch (const IoError& error) {
    EXPECT_EQ(error.code().value(), ENOENT);
    EXPECT_EQ(error.path(), path);
    EXPECT_THAT(error.what(), HasSubstr("/nonexistent/file: open"));
  }
}

TEST(Syscall, RepeatsOnInterruptAndReturnsTheResult) {
  int calls = 0;
  const auto interrupted_twice = [&] {
    errno = EINTR;
    return ++calls < 3 ? -1 : 42;
  };
  EXPECT_EQ(SLUICE_SYSCALL(interrupted_twice(), ""), 42);
  EXPECT_EQ(calls, 3);
}

TEST(RankFailure, NamesAPathThatBeginsBothTextsOnce) {
  const auto shown = [](const std::string& path) {
    const std::exception_ptr error =
        std::make_exception_ptr(StorageError(path, "is in use by another run"));
    return std::string(decode_failure(encode_failure(error), 0, "/run: ").what());
  };
  EXPECT_EQ(shown("/run"), "/run: rank 0: is in use by another run");
  EXPECT_EQ(shown("/run/rank-1"), "/run: rank 0: /run/rank-1: is in use by another run");
}

}  // namespace
}  // namespace sluice
