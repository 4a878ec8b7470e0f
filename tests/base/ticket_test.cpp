#include "sluice/base/ticket.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "captured_log.hpp"
#include "message_of.hpp"
#include "sluice/base/error.hpp"
#include "wait_until_blocked.hpp"

namespace sluice {
namespace {

std::exception_ptr failure(const std::string& text) {
  return std::make_exception_ptr(std::runtime_error(text));
}

// Completes `source` from another thread once the creating thread waits.
class CompletesWhenBlocked {
 public:
  explicit CompletesWhenBlocked(TicketSource& source, std::exception_ptr error = nullptr)
      : thread_([&source, error = std::move(error), waiter = test::thread_id(), this]() mutable {
          while (!armed_.load()) std::this_thread::yield();
          test::wait_until_blocked(waiter);
          completed_ = true;
          source.complete(std::move(error));
        }) {}
  ~CompletesWhenBlocked() { thread_.join(); }
  void arm() { armed_ = true; }
  bool completed() const { return completed_.load(); }

 private:
  std::atomic<bool> armed_{false};
  std::atomic<bool> completed_{false};
  std::thread thread_;
};

TEST(Ticket, IsDoneWhenEmpty) {
  Ticket ticket;
  EXPECT_TRUE(ticket.done());
  ticket.wait();
  EXPECT_NO_THROW(ticket.finish());
}

TEST(Ticket, BlocksUntilTheWorkEnds) {
  TicketSource source;
  Ticket ticket = source.ticket();
  EXPECT_FALSE(ticket.done());
  CompletesWhenBlocked completer(source);
  completer.arm();
  ticket.wait();
  EXPECT_TRUE(completer.completed());
  EXPECT_TRUE(ticket.done());
  EXPECT_NO_THROW(ticket.finish());
}

TEST(Ticket, ThrowsTheErrorOnce) {
  TicketSource source;
  Ticket ticket = source.ticket();
  source.complete(failure("broken"));
  ticket.wait();  // leaves the error
  EXPECT_THROW(ticket.finish(), std::runtime_error);
  EXPECT_NO_THROW(ticket.finish());
}

TEST(Ticket, DestroyedWhilePendingWaitsAndLogsTheError) {
  const test::CapturedLog log;
  TicketSource source;
  std::optional<Ticket> ticket = source.ticket();
  CompletesWhenBlocked completer(source, failure("lost write"));
  completer.arm();
  ticket.reset();
  EXPECT_TRUE(completer.completed());
  EXPECT_TRUE(log.contains("work that nobody waited for failed: lost write"));
}

TEST(Ticket, AssignmentWaitsForWhatItHeld) {
  TicketSource source;
  Ticket ticket = source.ticket();
  CompletesWhenBlocked completer(source);
  completer.arm();
  ticket = Ticket();
  EXPECT_TRUE(completer.completed());
}

TEST(Ticket, MovedFromIsEmpty) {
  TicketSource source;
  Ticket first = source.ticket();
  Ticket second = std::move(first);
  EXPECT_TRUE(first.done());  // NOLINT(bugprone-use-after-move): the subject
  EXPECT_FALSE(second.done());
  source.complete();
}

TEST(Ticket, CallsWhenTheWorkHasEnded) {
  TicketSource source;
  Ticket ticket = source.ticket();
  std::vector<std::string> calls;
  for (const char* name : {"first", "second"}) {
    ticket.when_ended([&calls, &ticket, name] {
      EXPECT_TRUE(ticket.done());
      calls.push_back(name);
    });
  }
  EXPECT_TRUE(calls.empty());
  source.complete(failure("late"));
  EXPECT_EQ(calls, (std::vector<std::string>{"first", "second"}));
  ticket.when_ended([&] { calls.push_back("after the end"); });
  EXPECT_THROW(ticket.finish(), std::runtime_error);
  ticket.when_ended([&] { calls.push_back("empty"); });
  EXPECT_EQ(calls.size(), 4U);
}

TEST(Ticket, ACallAtTheEndThatThrowsIsLoggedAndTheOthersAreMade) {
  const test::CapturedLog log;
  TicketSource source;
  Ticket ticket = source.ticket();
  int calls = 0;
  ticket.when_ended([] { throw std::runtime_error("a mistake of the caller's"); });
  ticket.when_ended([&] { ++calls; });
  source.complete();
  ticket.when_ended([] { throw 1; });
  ticket.finish();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(log.contains("a call at the end of work failed: a mistake of the caller's"));
}

TEST(Ticket, CallsAtTheEndOfNoJoinedTicket) {
  TicketSource source;
  std::vector<Ticket> parts;
  parts.push_back(source.ticket());
  const Ticket joined = join(std::move(parts));
  EXPECT_THROW(joined.when_ended([] {}), InvalidArgument);
  source.complete();
}

TEST(TicketSource, EndsItsWorkOnce) {
  TicketSource source;
  const Ticket ticket = source.ticket();
  source.complete();
  EXPECT_THROW(source.complete(), InvalidArgument);
  EXPECT_TRUE(ticket.done());
}

TEST(TicketSource, DestroyedWithoutCompletingIsAnError) {
  std::optional<TicketSource> source(std::in_place);
  Ticket ticket = source->ticket();
  source.reset();
  EXPECT_THROW(ticket.finish(), Error);
}

TEST(TicketSource, AssignmentEndsTheTicketThatItHadWithAnError) {
  TicketSource source;
  Ticket old = source.ticket();
  source = TicketSource();
  ASSERT_TRUE(old.done());
  EXPECT_THROW(old.finish(), Error);
  Ticket ticket = source.ticket();
  EXPECT_FALSE(ticket.done());
  source.complete();
  EXPECT_NO_THROW(ticket.finish());
}

TEST(FinishAll, FinishesAllThenThrowsTheFirstError) {
  std::vector<TicketSource> sources(4);
  std::vector<Ticket> tickets;
  tickets.reserve(sources.size());
  for (TicketSource& source : sources) tickets.push_back(source.ticket());
  sources[3].complete(failure("third"));
  sources[1].complete(failure("first"));
  sources[0].complete();
  EXPECT_FALSE(all_done(tickets));
  CompletesWhenBlocked completer(sources[2], failure("second"));
  completer.arm();
  EXPECT_EQ(test::message_of<std::runtime_error>([&] { finish_all(tickets); }), "first");
  EXPECT_TRUE(completer.completed());  // drained before it reported
  EXPECT_TRUE(tickets.empty());
}

}  // namespace
}  // namespace sluice
