#include "sluice/base/executor.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "message_of.hpp"
#include "sluice/base/error.hpp"

namespace sluice {
namespace {

class AnyExecutor : public ::testing::TestWithParam<ExecutorKind> {};

std::vector<ExecutorKind> built_kinds() {
  return {
#if SLUICE_HAVE_TBB
    ExecutorKind::tbb,
#endif
        ExecutorKind::automatic, ExecutorKind::plain_threads
  };
}

std::string name_of_kind(const ::testing::TestParamInfo<ExecutorKind>& info) {
  switch (info.param) {
    case ExecutorKind::automatic:
      return "automatic";
    case ExecutorKind::tbb:
      return "tbb";
    case ExecutorKind::plain_threads:
      return "threads";
  }
  return "unknown";
}

INSTANTIATE_TEST_SUITE_P(Kinds, AnyExecutor, ::testing::ValuesIn(built_kinds()), name_of_kind);

// The nice value of the calling thread.
int nice_value() {
  return ::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()));
}

TEST_P(AnyExecutor, BackgroundThreadsStepBackAndCallersDoNot) {
  const int own = nice_value();
  const auto executor = make_executor(2, GetParam(), ThreadPriority::background);
  std::atomic<int> of_callers{0};
  std::atomic<int> of_others{0};
  const std::thread::id caller = std::this_thread::get_id();
  // Both threads take a body, since each waits for the other's; oneTBB starts no second thread
  // where there is one core.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  executor->for_each(2, [&](std::size_t) {
    (std::this_thread::get_id() == caller ? of_callers : of_others) = nice_value() + 100;
    while ((of_callers == 0 || of_others == 0) && std::chrono::steady_clock::now() < end)
      std::this_thread::yield();
  });
  if (of_others == 0) GTEST_SKIP() << "needs a second thread";
  EXPECT_EQ(of_callers, own + 100);
  EXPECT_EQ(of_others, std::min(own + 10, 19) + 100);
  EXPECT_EQ(nice_value(), own);
}

TEST_P(AnyExecutor, CallsEveryIndexOnce) {
  for (const int threads : {1, 2, 5}) {
    const auto executor = make_executor(threads, GetParam());
    EXPECT_EQ(executor->threads(), threads);
    for (const std::size_t count : {0U, 1U, 2U, 7U, 1000U}) {
      std::vector<std::atomic<int>> calls(count);
      executor->for_each(count, [&](std::size_t i) { ++calls[i]; });
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(calls[i].load(), 1) << i << " of " << count;
    }
  }
}

TEST_P(AnyExecutor, HasFinishedEveryBodyWhenItReturns) {
  const auto executor = make_executor(3, GetParam());
  for (int repeat = 0; repeat < 200; ++repeat) {
    // Plain ints: a body that still ran after the return would be a race that TSan reports.
    std::vector<int> values(16, 0);
    executor->for_each(values.size(), [&](std::size_t i) { values[i] = static_cast<int>(i); });
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], static_cast<int>(i));
  }
}

TEST_P(AnyExecutor, RethrowsTheErrorOfTheLowestIndexAfterAllEnded) {
  const auto executor = make_executor(4, GetParam());
  std::atomic<int> calls{0};
  const std::string said = test::message_of<std::runtime_error>([&] {
    executor->for_each(100, [&](std::size_t i) {
      ++calls;
      if (i % 10 == 3) throw std::runtime_error(std::to_string(i));
    });
  });
  EXPECT_EQ(said, "3");
  EXPECT_EQ(calls.load(), 100);
}

TEST_P(AnyExecutor, ServesSeveralCallersAtOnce) {
  const auto executor = make_executor(2, GetParam());
  std::atomic<int> calls{0};
  std::vector<std::thread> callers;
  callers.reserve(4);
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 50; ++repeat) {
        executor->for_each(20, [&](std::size_t) { ++calls; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(calls.load(), 4 * 50 * 20);
}

TEST_P(AnyExecutor, WithOneThreadRunsOnTheCallers) {
  const auto executor = make_executor(1, GetParam());
  const auto caller = std::this_thread::get_id();
  executor->for_each(10, [&](std::size_t) { EXPECT_EQ(std::this_thread::get_id(), caller); });
}

TEST_P(AnyExecutor, NeedsAtLeastOneThread) {
  EXPECT_THROW(make_executor(0, GetParam()), InvalidArgument);
  EXPECT_THROW(make_executor(-1, GetParam()), InvalidArgument);
}

TEST(PlainThreadsDeathTest, ThatTheSystemRefusesAreAnError) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer needs more addresses than this test allows";
#endif
  const auto ask = [] {
    const rlimit few{.rlim_cur = 1U << 30U, .rlim_max = 1U << 30U};  // room for some stacks
    setrlimit(RLIMIT_AS, &few);
    try {
      make_executor(100'000, ExecutorKind::plain_threads);
    } catch (const Error& error) {
      std::fprintf(stderr, "%s", error.what());
      std::_Exit(3);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(ask(), ::testing::ExitedWithCode(3), "of 99999 were started; ask for fewer");
}

TEST(PlainThreads, RunBodiesAtTheSameTime) {
  const auto executor = make_executor(2, ExecutorKind::plain_threads);
  EXPECT_EQ(executor->name(), "threads");
  // Each body waits for the other: sequential bodies would never end.
  std::atomic<int> inside{0};
  executor->for_each(2, [&](std::size_t) {
    ++inside;
    while (inside.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(inside.load(), 2);
}

#if SLUICE_HAVE_TBB
TEST(Automatic, TakesTbbWhereItWasBuiltIn) {
  EXPECT_EQ(make_executor(2)->name(), "tbb");
}
#else
TEST(Automatic, TakesPlainThreadsWithoutTbb) {
  EXPECT_EQ(make_executor(2)->name(), "threads");
}

TEST(Tbb, IsRefusedWhereItWasNotBuiltIn) {
  EXPECT_THROW(make_executor(2, ExecutorKind::tbb), InvalidArgument);
}
#endif

}  // namespace
}  // namespace sluice
