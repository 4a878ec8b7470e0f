// PieceQueue: which thread takes which piece, and what it says of errors.

#include "sluice/base/piece_queue.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "executors.hpp"
#include "fake_numa.hpp"
#include "message_of.hpp"
#include "sluice/base/error.hpp"

namespace sluice {
namespace {

using test::message_of;
using Order = std::vector<std::string>;

void run_all(PieceQueue& queue) {
  while (!queue.empty()) queue.run();
}

struct Kind {
  ExecutorKind kind;
  int threads;
};
class AnyPieceQueue : public ::testing::TestWithParam<Kind> {
 protected:
  const std::unique_ptr<Executor> executor_ = make_executor(GetParam().threads, GetParam().kind);
  PieceQueue queue_{*executor_};
};
INSTANTIATE_TEST_SUITE_P(Executors, AnyPieceQueue,
                         ::testing::Values(Kind{ExecutorKind::automatic, 1},
                                           Kind{ExecutorKind::automatic, 2},
                                           Kind{ExecutorKind::automatic, 7},
                                           Kind{ExecutorKind::plain_threads, 2},
                                           Kind{ExecutorKind::plain_threads, 7}));

TEST_P(AnyPieceQueue, RunsEveryPieceOnceWithMoreThreadsThanPiecesToo) {
  for (const std::size_t count : {1U, 2U, 3U, 6U, 1001U}) {
    // Plain ints: a piece that still ran after `ended` would be a race that TSan reports.
    std::vector<int> calls(count, 0);
    int ended = 0;
    queue_.add({.count = count,
                .body = [&](std::size_t i) { ++calls[i]; },
                .ended =
                    [&](const std::exception_ptr& error) {
                      EXPECT_FALSE(error);
                      ended += std::count(calls.begin(), calls.end(), 1) == std::ptrdiff_t(count);
                    }});
    EXPECT_FALSE(queue_.empty());
    run_all(queue_);
    EXPECT_EQ(ended, 1) << count;
  }
  queue_.run();  // without pieces
}

TEST_P(AnyPieceQueue, RunsLoopsThatAreAddedWhileOthersRun) {
  constexpr int kLoops = 200;
  std::vector<std::atomic<int>> calls(kLoops);
  std::atomic<int> ended{0};
  int added = 0;
  const auto add_next = [&] {
    if (added == kLoops) return;
    const std::size_t loop = static_cast<std::size_t>(added++);
    queue_.add({.priority = loop % 3,
                .count = 1 + loop % 5,
                .body = [&calls, loop](std::size_t) { ++calls[loop]; },
                .ended = [&](const std::exception_ptr&) { ++ended; }});
  };
  while (added < kLoops) {
    add_next();
    queue_.run(add_next);
  }
  run_all(queue_);
  EXPECT_EQ(ended, kLoops);
  for (std::size_t loop = 0; loop < kLoops; ++loop) EXPECT_EQ(calls[loop], 1 + loop % 5) << loop;
}

TEST_P(AnyPieceQueue, TellsTheErrorOfTheLowestPieceAfterAllEnded) {
  std::atomic<int> calls{0};
  std::string failed, other = "not ended";
  queue_.add({.count = 100,
              .body =
                  [&](std::size_t i) {
                    ++calls;
                    if (i % 10 == 3) throw std::runtime_error(std::to_string(i));
                  },
              .ended = [&](const std::exception_ptr& error) { failed = message_of(error); }});
  queue_.add({.count = 10,
              .body = [&](std::size_t) { ++calls; },
              .ended = [&](const std::exception_ptr& error) { other = message_of(error); }});
  run_all(queue_);
  EXPECT_EQ(failed, "3");
  EXPECT_EQ(other, "");
  EXPECT_EQ(calls, 110);
}

TEST(PieceQueue, TakesTheLowestPriorityFirst) {
  const auto executor = make_executor(1);
  PieceQueue queue(*executor);
  Order order;
  const auto loop = [&](std::size_t priority, const std::string& name) {
    return PieceLoop{
        .priority = priority,
        .count = 2,
        .body = [&order, name](std::size_t i) { order.push_back(name + std::to_string(i)); },
        .ended = [&order, name](const std::exception_ptr&) { order.push_back(name + " ended"); }};
  };
  queue.add(loop(5, "e"));
  queue.add(loop(3, "c"));
  queue.add(loop(5, "f"));
  bool added = false;
  while (!queue.empty()) {
    queue.run([&] {  // a unit that arrives while another is at work comes first
      if (!added) queue.add(loop(1, "a"));
      added = true;
    });
  }
  EXPECT_EQ(order, (Order{"c0", "a0", "a1", "a ended", "c1", "c ended", "e0", "e1", "e ended", "f0",
                          "f1", "f ended"}));
}

TEST(PieceQueue, RefusesALoopWithoutPieces) {
  const auto executor = make_executor(1);
  PieceQueue queue(*executor);
  EXPECT_THROW(queue.add({.body = [](std::size_t) {}}), InvalidArgument);
  EXPECT_TRUE(queue.empty());
}

TEST(PieceQueue, NoThreadWaitsAtTheEndOfALoop) {
  const auto executor = make_executor(2, ExecutorKind::plain_threads);
  PieceQueue queue(*executor);
  std::atomic<bool> next_began{false};
  queue.add({.count = 2, .body = [&](std::size_t i) {
               while (i == 0 && !next_began) std::this_thread::yield();
             }});
  queue.add({.priority = 1, .count = 1, .body = [&](std::size_t) {
               next_began = true;  // while a piece of the loop before still runs
             }});
  run_all(queue);
  EXPECT_TRUE(next_began);
}

TEST(PieceQueue, EveryThreadTakesPieces) {
  constexpr std::size_t kThreads = 5;
  for (const ExecutorKind kind : {ExecutorKind::automatic, ExecutorKind::plain_threads}) {
    const auto executor = make_executor(kThreads, kind);
    PieceQueue queue(*executor);
    if (executor->name() == "tbb") continue;  // oneTBB has no more workers than cores
    std::atomic<std::size_t> here{0};
    queue.add({.count = kThreads, .body = [&](std::size_t) {
                 ++here;
                 while (here < kThreads) std::this_thread::yield();  // for ever with fewer
               }});
    run_all(queue);
    EXPECT_EQ(here, kThreads);
  }
}

TEST(PieceQueue, GivesWayToAnotherCallerOfTheExecutor) {
  constexpr std::size_t kPieces = 1000;
  for (const ExecutorKind kind : {ExecutorKind::automatic, ExecutorKind::plain_threads}) {
    const auto executor = make_executor(2, kind);
    PieceQueue queue(*executor);
    std::atomic<std::size_t> ran{0};
    std::atomic<bool> other_ran{false};
    std::thread other;
    queue.add({.count = kPieces, .body = [&](std::size_t i) {
                 if (i == 0)
                   other = std::thread(
                       [&] { executor->for_each(2, [&](std::size_t) { other_ran = true; }); });
                 while (!other_ran && !executor->is_contended()) std::this_thread::yield();
                 ++ran;
               }});
    queue.run();
    EXPECT_TRUE(other_ran || ran < kPieces) << executor->name();
    run_all(queue);
    other.join();
    EXPECT_EQ(ran, kPieces);
    EXPECT_TRUE(other_ran);
  }
}

TEST(PieceQueue, AThreadTakesPiecesOfItsOwnNodeFirst) {
  const test::FakeNuma numa(2, {1, 0, Numa::kUnknown, 1, 0, 0, 1});
  const auto executor = make_executor_on(numa, 1, ExecutorKind::plain_threads);
  PieceQueue queue(*executor, numa, {});
  std::vector<std::size_t> order;
  queue.add({.count = numa.count(),
             .memory_of = [&](std::size_t i) { return numa.memory_of(i); },
             .body = [&](std::size_t i) { order.push_back(i); }});
  test::FakeNuma::here = 1;
  run_all(queue);
  test::FakeNuma::here = 0;
  EXPECT_EQ(order, (std::vector<std::size_t>{0, 3, 6, 2, 1, 4, 5}));
}

}  // namespace
}  // namespace sluice
