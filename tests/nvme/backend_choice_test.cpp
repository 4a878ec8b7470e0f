#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <fstream>
#include <utility>

#include "nvme_test_support.hpp"
#include "sluice/base/error.hpp"

namespace sluice::nvme {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(ParseBackend, KnowsTheFourNames) {
  EXPECT_EQ(parse_backend("auto"), BackendKind::automatic);
  EXPECT_EQ(parse_backend("io_uring"), BackendKind::io_uring);
  EXPECT_EQ(parse_backend("libaio"), BackendKind::libaio);
  EXPECT_EQ(parse_backend("threads"), BackendKind::threads);
}

TEST(ParseBackend, NamesTheNearestOnAMistake) {
  EXPECT_THAT(message_of<InvalidArgument>([] { parse_backend("iouring"); }),
              AllOf(HasSubstr("\"iouring\""), HasSubstr("did you mean \"io_uring\"?")));
  EXPECT_THAT(message_of<InvalidArgument>([] { parse_backend("aio"); }),
              AllOf(HasSubstr("\"aio\""), HasSubstr("io_uring, libaio, threads")));
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

// Every backend better than the chosen one is unavailable, and the message gives its reason.
void expect_choice_of_auto(const BackendChoice& choice) {
  std::string why_no_uring;
  std::string why_no_libaio;
  if (io_uring_available(why_no_uring)) {
    EXPECT_EQ(choice.backend->name(), "io_uring");
    EXPECT_EQ(choice.why_not_better, "");
  } else if (libaio_available(why_no_libaio)) {
    EXPECT_EQ(choice.backend->name(), "libaio");
    EXPECT_EQ(choice.why_not_better, "libaio: " + why_no_uring);
  } else {
    EXPECT_EQ(choice.backend->name(), "threads");
    EXPECT_EQ(choice.why_not_better, "threads: " + why_no_uring + "; " + why_no_libaio);
  }
}

TEST(MakeBackend, SaysWhyOnlyWhenSomethingBetterWasWanted) {
  EXPECT_EQ(make_backend(BackendKind::threads, 4, 1).why_not_better, "");
  expect_choice_of_auto(make_backend(BackendKind::automatic, 4, 1));
}

std::string name_and_why(const BackendChoice& choice) {
  return std::string(choice.backend->name()) + "|" + choice.why_not_better;
}

// The error of a request for the backend by name, in this process.
std::string error_of_making(BackendKind kind, unsigned depth = 4) {
  try {
    make_backend(kind, depth, 1);
  } catch (const InvalidArgument& error) {
    return std::string("InvalidArgument: ") + error.what();
  }
  return "no error";
}

#if !SLUICE_HAVE_URING
TEST(MakeBackend, IoUringThatIsNotBuiltFailsByNameAndNamesTheOption) {
  EXPECT_THAT(error_of_making(BackendKind::io_uring),
              AllOf(StartsWith("InvalidArgument: "), HasSubstr("SLUICE_WITH_URING"),
                    HasSubstr("choose auto or threads")));
}
#endif

#if !SLUICE_HAVE_AIO
TEST(MakeBackend, LibaioThatIsNotBuiltFailsByNameAndNamesTheOption) {
  EXPECT_THAT(error_of_making(BackendKind::libaio),
              AllOf(StartsWith("InvalidArgument: "), HasSubstr("SLUICE_WITH_AIO"),
                    HasSubstr("choose auto or threads")));
}
#endif

TEST(MakeBackend, AutoTakesThreadsAndSaysWhyNeitherOfTheOthersCanBeHad) {
  const std::string said = run_in_child([] {
    deny(__NR_io_uring_setup, EPERM);
    deny(__NR_io_setup, EPERM);
    return name_and_why(make_backend(BackendKind::automatic, 4, 1));
  });
  EXPECT_THAT(said, AllOf(StartsWith("threads|threads: io_uring: "), HasSubstr("; libaio: ")));
#if SLUICE_HAVE_URING
  EXPECT_THAT(said, AllOf(HasSubstr("io_uring_setup"), HasSubstr("Operation not permitted")));
#endif
#if SLUICE_HAVE_AIO
  EXPECT_THAT(said, AllOf(HasSubstr("io_setup"), HasSubstr("Operation not permitted")));
#endif
}

#if SLUICE_HAVE_AIO

std::string why_no_libaio_in_child(long denied, int error_number) {
  return run_in_child([&] {
    deny(denied, error_number);
    std::string why;
    return libaio_available(why) ? std::string("available") : why;
  });
}

TEST(MakeBackend, AutoTakesLibaioAndSaysWhyWhereIoUringIsDenied) {
  SLUICE_SKIP_WITHOUT(BackendKind::libaio);
  const std::string said = run_in_child([] {
    deny(__NR_io_uring_setup, EPERM);
    return name_and_why(make_backend(BackendKind::automatic, 4, 1));
  });
  EXPECT_THAT(said, AllOf(StartsWith("libaio|libaio: io_uring: "), Not(HasSubstr("; libaio"))));
}

TEST(MakeBackend, LibaioAskedForByNameFailsWhereItIsDenied) {
  const std::string said = run_in_child([] {
    deny(__NR_io_setup, EPERM);
    return error_of_making(BackendKind::libaio);
  });
  EXPECT_THAT(said, AllOf(StartsWith("InvalidArgument: "), HasSubstr("io_setup"),
                          HasSubstr("seccomp"), HasSubstr("choose auto or threads")));
}

TEST(MakeBackend, AKernelWithoutAioIsNamed) {
  EXPECT_THAT(why_no_libaio_in_child(__NR_io_setup, ENOSYS), HasSubstr("CONFIG_AIO"));
}

// A filter may allow the setup and deny later calls.
TEST(MakeBackend, LibaioIsProbedToTheEnd) {
  SLUICE_SKIP_WITHOUT(BackendKind::libaio);
  for (const auto& [call, name] :
       {std::pair{__NR_io_submit, "io_submit"}, std::pair{__NR_io_getevents, "io_getevents"}}) {
    EXPECT_THAT(why_no_libaio_in_child(call, EPERM), AllOf(HasSubstr(name), HasSubstr("seccomp")));
  }
}

// Injected, because really exhausting the limit would affect the whole machine.
TEST(MakeBackend, ALimitOnTheQueuesOfAllProcessesIsNamedWithItsValue) {
  std::string limit;
  std::ifstream("/proc/sys/fs/aio-max-nr") >> limit;
  ASSERT_NE(limit, "");
  EXPECT_THAT(why_no_libaio_in_child(__NR_io_setup, EAGAIN),
              AllOf(HasSubstr("fs.aio-max-nr, " + limit), HasSubstr("fs.aio-nr"),
                    HasSubstr("lower the depth")));
}

// The depth is the first argument of io_setup.
TEST(MakeBackend, AQueueThatIsTooLongForTheLimitIsRefusedThoughTheProbePasses) {
  SLUICE_SKIP_WITHOUT(BackendKind::libaio);
  const std::string said = run_in_child([] {
    deny(__NR_io_setup, EAGAIN, 101);
    return error_of_making(BackendKind::libaio, 101) + "|" +
           error_of_making(BackendKind::libaio, 100);
  });
  EXPECT_THAT(said, AllOf(HasSubstr("fs.aio-max-nr"), EndsWith("|no error")));
}

#endif

#if SLUICE_HAVE_URING

std::string why_no_io_uring_in_child(int error_number) {
  return run_in_child([&] {
    deny(__NR_io_uring_setup, error_number);
    std::string why;
    return io_uring_available(why) ? std::string("available") : why;
  });
}

TEST(MakeBackend, IoUringAskedForByNameFailsWhereItIsDenied) {
  const std::string said = run_in_child([] {
    deny(__NR_io_uring_setup, EPERM);
    return error_of_making(BackendKind::io_uring);
  });
  EXPECT_THAT(said, AllOf(StartsWith("InvalidArgument: "), HasSubstr("io_uring_setup"),
                          HasSubstr("choose auto or threads")));
}

TEST(MakeBackend, ADenialOfIoUringIsExplained) {
  EXPECT_THAT(why_no_io_uring_in_child(EPERM),
              ::testing::AnyOf(HasSubstr("seccomp"), HasSubstr("io_uring_disabled")));
}

TEST(MakeBackend, AKernelWithoutIoUringIsNamed) {
  EXPECT_THAT(why_no_io_uring_in_child(ENOSYS), HasSubstr("no io_uring"));
}

TEST(MakeBackend, ATooSmallMemoryLimitIsNamed) {
  EXPECT_THAT(why_no_io_uring_in_child(ENOMEM), HasSubstr("RLIMIT_MEMLOCK"));
}

#endif

}  // namespace
}  // namespace sluice::nvme
