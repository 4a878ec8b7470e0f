#include "sluice/base/worker.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "in_child.hpp"

namespace sluice {
namespace {

TEST(Worker, RunsTasksInOrderOnItsOwnThread) {
  std::vector<int> order;
  std::vector<Ticket> tickets;
  tickets.reserve(100);
  std::thread::id ran_on;
  Worker worker("test");
  for (int i = 0; i < 100; ++i) {
    tickets.push_back(worker.begin([&order, &ran_on, i] {
      order.push_back(i);
      ran_on = std::this_thread::get_id();
    }));
  }
  finish_all(tickets);
  ASSERT_EQ(order.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  EXPECT_NE(ran_on, std::this_thread::get_id());
}

TEST(Worker, GivesAnErrorToItsTicketAndGoesOn) {
  Worker worker("test");
  Ticket bad = worker.begin([] { throw std::runtime_error("bad"); });
  bool ran = false;
  Ticket good = worker.begin([&] { ran = true; });
  EXPECT_THROW(bad.finish(), std::runtime_error);
  EXPECT_NO_THROW(good.finish());
  EXPECT_TRUE(ran);
}

TEST(Worker, RunsWhatWasPostedBeforeItEnds) {
  std::atomic<bool> may_start{false};
  std::atomic<int> ran{0};
  std::vector<Ticket> tickets;
  {
    Worker worker("test");
    tickets.push_back(worker.begin([&] {
      while (!may_start.load()) std::this_thread::yield();
    }));
    for (int i = 0; i < 10; ++i) tickets.push_back(worker.begin([&] { ++ran; }));
    EXPECT_EQ(ran.load(), 0);
    may_start = true;
  }
  EXPECT_EQ(ran.load(), 10);
  EXPECT_TRUE(all_done(tickets));
}

TEST(Worker, FreesWhatATaskHoldsBeforeItsTicketIsDone) {
  Worker worker("test");
  for (int repeat = 0; repeat < 100; ++repeat) {
    auto held = std::make_shared<int>(0);
    const std::weak_ptr<int> observer = held;
    Ticket ticket = worker.begin([held = std::move(held)] { ++*held; });
    ticket.wait();
    ASSERT_TRUE(observer.expired());
  }
}

TEST(Worker, TakesTasksFromManyThreads) {
  int ran = 0;  // not atomic: one worker runs them all
  {
    Worker worker("a name that is longer than the kernel keeps");
    std::vector<std::thread> posters;
    posters.reserve(4);
    for (int i = 0; i < 4; ++i) {
      posters.emplace_back([&] {
        std::vector<Ticket> tickets;
        tickets.reserve(100);
        for (int j = 0; j < 100; ++j) tickets.push_back(worker.begin([&] { ++ran; }));
        finish_all(tickets);
      });
    }
    for (std::thread& poster : posters) poster.join();
  }
  EXPECT_EQ(ran, 400);
}

TEST(Worker, RefusesAForkedChild) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer's allocator may be locked in a child of several threads";
#endif
  Worker worker("test");
  const std::string said = test::run_in_child([&]() -> std::string {
    const Ticket ticket = worker.begin([] {});
    return "began";
  });
  EXPECT_NE(said.find("works in the parent process only"), said.npos) << said;
  worker.begin([] {}).finish();
}

}  // namespace
}  // namespace sluice
