#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "nvme_test_support.hpp"
#include "sluice/base/error.hpp"

namespace sluice::nvme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ParseBackend, KnowsTheThreeNames) {
  EXPECT_EQ(parse_backend("auto"), BackendKind::automatic);
  EXPECT_EQ(parse_backend("io_uring"), BackendKind::io_uring);
  EXPECT_EQ(parse_backend("threads"), BackendKind::threads);
}

TEST(ParseBackend, NamesTheNearestOnAMistake) {
  EXPECT_THAT(message_of<InvalidArgument>([] { parse_backend("iouring"); }),
              AllOf(HasSubstr("\"iouring\""), HasSubstr("did you mean io_uring")));
}

TEST(MakeBackend, RefusesDepthAndThreadsOutOfRange) {
  EXPECT_THROW(make_backend(BackendKind::threads, 0, 1), InvalidArgument);
  EXPECT_THROW(make_backend(BackendKind::threads, 4097, 1), InvalidArgument);
  EXPECT_THROW(make_backend(BackendKind::threads, 1, 0), InvalidArgument);
  EXPECT_THROW(make_backend(BackendKind::threads, 1, 65), InvalidArgument);
}

TEST(MakeBackend, TakesTheLargestDepth) {
  EXPECT_EQ(make_backend(BackendKind::threads, 4096, 64).backend->depth(), 4096U);
  EXPECT_EQ(make_backend(BackendKind::automatic, 4096, 1).backend->depth(), 4096U);
}

TEST(MakeBackend, SaysWhyOnlyWhenSomethingBetterWasWanted) {
  EXPECT_EQ(make_backend(BackendKind::threads, 4, 1).why_not_better, "");
  std::string why;
  const bool available = io_uring_available(why);
  const BackendChoice choice = make_backend(BackendKind::automatic, 4, 1);
  EXPECT_EQ(choice.backend->name(), available ? "io_uring" : "threads");
  EXPECT_EQ(choice.why_not_better, available ? "" : "threads: " + why);
}

#if SLUICE_HAVE_URING

// From now on io_uring_setup answers `error_number` in this process, as in a container.
void deny_io_uring(int error_number) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K,
               SECCOMP_RET_ERRNO | (static_cast<unsigned>(error_number) & SECCOMP_RET_DATA)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{4, program};
  SLUICE_SYSCALL(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl");
  SLUICE_SYSCALL(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), "prctl");
}

TEST(MakeBackend, AutoTakesThreadsAndSaysWhyWhereIoUringIsDenied) {
  const std::string said = run_in_child([] {
    deny_io_uring(EPERM);
    const BackendChoice choice = make_backend(BackendKind::automatic, 4, 1);
    return std::string(choice.backend->name()) + "|" + choice.why_not_better;
  });
  EXPECT_THAT(said, AllOf(StartsWith("threads|threads: "), HasSubstr("io_uring_setup"),
                          HasSubstr("Operation not permitted")));
  EXPECT_THAT(said, ::testing::AnyOf(HasSubstr("seccomp"), HasSubstr("io_uring_disabled")));
}

TEST(MakeBackend, IoUringAskedForByNameFailsWhereItIsDenied) {
  const std::string said = run_in_child([]() -> std::string {
    deny_io_uring(EPERM);
    try {
      make_backend(BackendKind::io_uring, 4, 1);
    } catch (const InvalidArgument& error) {
      return std::string("InvalidArgument: ") + error.what();
    }
    return "no error";
  });
  EXPECT_THAT(said, AllOf(StartsWith("InvalidArgument: "), HasSubstr("io_uring_setup"),
                          HasSubstr("choose auto or threads")));
}

TEST(MakeBackend, AKernelWithoutIoUringIsNamed) {
  const std::string said = run_in_child([] {
    deny_io_uring(ENOSYS);
    std::string why;
    return std::string(io_uring_available(why) ? "available" : why);
  });
  EXPECT_THAT(said, HasSubstr("no io_uring"));
}

TEST(MakeBackend, ATooSmallMemoryLimitIsNamed) {
  const std::string said = run_in_child([] {
    deny_io_uring(ENOMEM);
    std::string why;
    return std::string(io_uring_available(why) ? "available" : why);
  });
  EXPECT_THAT(said, HasSubstr("RLIMIT_MEMLOCK"));
}

#endif

}  // namespace
}  // namespace sluice::nvme
