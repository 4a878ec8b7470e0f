#include "sluice/base/threads.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "in_child.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/file/proc.hpp"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(CheckThreads, PassesWithTheThreadsOfThisMachine) {
  EXPECT_NO_THROW(check_threads(0));
  EXPECT_NO_THROW(check_threads(8));
}

TEST(CheckThreads, NamesTheLimitAndWhatWasStarted) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer has a thread of its own, which counts";
#endif
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const std::string said = test::run_in_child([] {
    test::limit_processes(4);
    try {
      check_threads(3);
      check_threads(4);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  });
  EXPECT_THAT(said, AllOf(HasSubstr("gives this process 3 of the 4 threads"),
                          HasSubstr("RLIMIT_NPROC"), HasSubstr("is 4;"), HasSubstr("ulimit -u")));
}

TEST(CheckThreads, NamesALimitOnMemory) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer needs memory of its own";
#endif
  const std::string said = test::run_in_child([] {
    // Room for what the process has, and for a few stacks.
    const rlim_t used_bytes = proc_bytes("/proc/self/status", {"VmData"}).value_or(0);
    test::in_child_check(used_bytes > 0);
    test::limit_resource(RLIMIT_DATA, used_bytes + kMiB);
    try {
      check_threads(100);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  });
  EXPECT_THAT(said, AllOf(HasSubstr("of the 100 threads"), HasSubstr("Memory for its stack"),
                          HasSubstr("RLIMIT_DATA is "), HasSubstr("ulimit -d")));
}

TEST(StartThread, NamesTheThread) {
  std::string name(16, '\0');
  std::atomic<bool> named = false;
  std::thread thread = start_thread("sluice-a-long-name", [&] {
    while (!named) std::this_thread::yield();
    ::pthread_getname_np(::pthread_self(), name.data(), name.size());
  });
  named = true;
  thread.join();
  EXPECT_STREQ(name.c_str(), "sluice-a-long-n");
}

TEST(StartThread, SaysWhichThreadIsRefusedAndTheLimit) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer has a thread of its own, which counts";
#endif
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const std::string said = test::run_in_child([] {
    test::limit_processes(1);
    try {
      start_thread("sluice-gather", [] {}).join();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  });
  EXPECT_THAT(said, AllOf(HasSubstr("refuses the thread sluice-gather"), HasSubstr("RLIMIT_NPROC"),
                          HasSubstr("ulimit -u")));
}

// As container runtimes that are older than the C library.
TEST(StartThread, SaysThatAFilterRefusesIt) {
  const std::string said = test::run_in_child([] {
    test::deny(__NR_clone3, EPERM);
    std::string messages;
    try {
      start_thread("sluice-gather", [] {}).join();
    } catch (const Error& error) {
      messages += error.what();
    }
    try {
      check_threads(3);
    } catch (const Error& error) {
      messages += std::string("\n") + error.what();
    }
    return messages;
  });
  EXPECT_THAT(said,
              AllOf(HasSubstr("the thread sluice-gather (Operation not permitted). A seccomp"),
                    HasSubstr("main one (Operation not permitted). A seccomp filter"),
                    HasSubstr("allows clone and clone3"), Not(HasSubstr("RLIMIT_NPROC"))));
}

TEST(AllowedCores, AreThoseOfTheMask) {
  cpu_set_t set;
  CPU_ZERO(&set);
  ASSERT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
  EXPECT_EQ(allowed_cores(), CPU_COUNT(&set));
}

TEST(AllowedCores, AreEmptyWhereTheSystemRefusesToSay) {
  const std::string said = test::run_in_child([] {
    test::deny(__NR_sched_getaffinity, EPERM);
    return std::string(allowed_cores() ? "told" : "refused");
  });
  EXPECT_EQ(said, "refused");
}

}  // namespace
}  // namespace sluice
