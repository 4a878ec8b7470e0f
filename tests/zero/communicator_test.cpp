// Communicators of threads: the suite that all communicators pass, and the ends of ranks.

#include "sluice/zero/communicator.hpp"

#include <atomic>
#include <chrono>

#include "communicator_conformance.hpp"
#include "exchange/exchange_communicator.hpp"
#include "sluice/base/error_of.hpp"
#include "threads/memory_transport.hpp"

namespace sluice::zero {
namespace {

using test::Bytes;
using test::CommunicatorCase;
using test::CommunicatorConformance;
using test::message_of;
using test::on_threads;
using testing::AllOf;
using testing::HasSubstr;

CommunicatorCase threads(int world_size) {
  return {"threads", world_size, [world_size](const auto& body) {
            auto ranks = make_thread_communicators(world_size);
            on_threads(ranks, body);
          }};
}

// Small blocks, pieces and eager messages: every path of long messages with short buffers.
CommunicatorCase small_pieces(int world_size) {
  return {"threads with small pieces", world_size, [world_size](const auto& body) {
            const auto executor = make_executor(2, ExecutorKind::plain_threads);
            std::vector<std::unique_ptr<Communicator>> ranks;
            for (auto& transport : make_memory_transports(world_size, {sizeof(CallHeader), false}))
              ranks.push_back(std::make_unique<ExchangeCommunicator>(
                  std::move(transport),
                  ExchangeOptions{
                      .executor = executor.get(), .messages = {1001, true}, .block_bytes = 4096}));
            on_threads(ranks, body);
          }};
}

// Each call is made by the thread of its rank, and has ended when its ticket is there.
CommunicatorCase performed(int world_size) {
  CommunicatorCase each = threads(world_size);
  each.name = "threads that make their calls themselves";
  each.begin = [](Communicator& comm, const RankCall& call, Bytes& input, Bytes& output) {
    return Ticket::ended(error_of([&] { comm.perform(HostCall{call, input, output}); }));
  };
  return each;
}

CommunicatorCase single_rank() {
  return {"a single rank", 1, [](const auto& body) {
            const auto rank = make_single_rank();
            body(*rank);
          }};
}

INSTANTIATE_TEST_SUITE_P(Threads, CommunicatorConformance,
                         testing::Values(single_rank(), threads(1), threads(2), threads(3),
                                         threads(5), performed(2), performed(3), small_pieces(2),
                                         small_pieces(4)));

TEST(ThreadCommunicators, BarrierReturnsOnlyAfterAllHaveCome) {
  auto ranks = make_thread_communicators(4);
  std::atomic<int> arrived{0};
  std::atomic<int> too_early{0};
  on_threads(ranks, [&](Communicator& comm) {
    ++arrived;
    comm.barrier();
    if (arrived.load() != 4) ++too_early;
  });
  EXPECT_EQ(too_early.load(), 0);
}

TEST(ThreadCommunicators, ARankThatLeavesEndsTheWaitOfTheOthersAndIsNamed) {
  auto ranks = make_thread_communicators(3);
  std::vector<std::string> errors(3);
  std::thread first([&] { errors[0] = message_of<Error>([&] { ranks[0]->barrier(); }); });
  std::thread second([&] {
    Bytes bytes(12);
    errors[2] = message_of<Error>([&] { ranks[2]->all_gather(bytes, "unit h.2"); });
  });
  ranks[1].reset();
  first.join();
  second.join();
  EXPECT_THAT(errors[0],
              AllOf(HasSubstr("rank 1 of 3 has left"), HasSubstr("rank 0 cannot complete barrier"),
                    HasSubstr("see the error of rank 1")));
  EXPECT_THAT(errors[2],
              AllOf(HasSubstr("rank 1 of 3 has left"),
                    HasSubstr("rank 2 cannot complete all_gather of unit h.2, 12 bytes")));
}

TEST(ThreadCommunicators, ARankMayLeaveAfterItsLastCallWhileOthersStillReturnFromIt) {
  for (int round = 0; round < 200; ++round) {
    auto ranks = make_thread_communicators(3);
    std::atomic<int> failures{0};
    std::vector<std::thread> threads;
    for (auto& rank : ranks) {
      threads.emplace_back([&rank, &failures] {
        std::array<double, 2> values{1.0, 2.0};
        if (error_of([&] { rank->all_reduce(values); })) ++failures;
        rank.reset();
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(failures.load(), 0) << "round " << round;
  }
}

TEST(ThreadCommunicators, AnAbortEndsTheCallsOfAllRanksAndSaysWhy) {
  auto ranks = make_thread_communicators(3);
  std::vector<std::string> errors(3);
  std::vector<std::thread> threads;
  for (const std::size_t rank : {0U, 1U}) {
    threads.emplace_back([&, rank] {
      errors[rank] = message_of<Error>([&] { ranks[rank]->barrier("the commit of step 7"); });
    });
  }
  ranks[0]->abort("the disk is full");
  for (std::thread& thread : threads) thread.join();
  errors[2] = message_of<Error>([&] { ranks[2]->barrier("the commit of step 7"); });
  EXPECT_THAT(errors[0], HasSubstr("aborted: the disk is full"));
  for (const std::size_t rank : {1U, 2U}) {
    EXPECT_THAT(errors[rank], AllOf(HasSubstr("rank 0 of 3 has aborted (the disk is full)"),
                                    HasSubstr("rank " + std::to_string(rank) +
                                              " cannot complete barrier of the commit of step 7")));
  }
}

// Rank 1 hears rank 0's abort and passes it on; rank 2 may hear either of the two.
TEST(ThreadCommunicators, AnAbortHasTheKindOfItsErrorAndTheRankAtFaultOnAllRanks) {
  for (int round = 0; round < 20; ++round) {
    auto ranks = make_thread_communicators(3);
    ranks[0]->abort(AbortReason(std::make_exception_ptr(StorageError("f", "is damaged"))));
    for (const std::size_t rank : {1U, 2U}) {
      const std::exception_ptr error = error_of([&] { ranks[rank]->barrier(); });
      ASSERT_TRUE(error);
      EXPECT_THROW(std::rethrow_exception(error), RankFailure);
      EXPECT_EQ(failure_kind(error), FailureKind::storage);
      EXPECT_THAT(failure_text(error),
                  AllOf(testing::StartsWith("rank 0 of 3 has aborted (f: is damaged)"),
                        HasSubstr("see the error of rank 0")));
      ranks[rank]->abort(AbortReason(error));
    }
    const std::exception_ptr own = error_of([&] { ranks[0]->barrier(); });
    EXPECT_THAT(failure_text(own), HasSubstr("aborted: f: is damaged"));
    EXPECT_EQ(failure_kind(own), FailureKind::other);  // the error itself is the caller's
    const std::exception_ptr again = error_of([&] { ranks[1]->barrier(); });
    EXPECT_EQ(failure_kind(again), FailureKind::storage);
  }
}

TEST(ThreadCommunicators, ALongReasonOfAnAbortIsCutAndTheRankThatKnowsTheRestIsNamed) {
  auto ranks = make_thread_communicators(2);
  ranks[0]->abort(std::string(1000, 'x'));
  const std::string error = message_of<Error>([&] { ranks[1]->barrier("the commit of step 7"); });
  EXPECT_THAT(error, AllOf(HasSubstr("xxx...)"), HasSubstr("see the error of rank 0")));
}

// Rank 1 has the call of rank 0, and waits for that of rank 2, which does not come.
TEST(ThreadCommunicators, AnAbortIsHeardWhileAThirdRankIsAwaited) {
  auto ranks = make_thread_communicators(3);
  Ticket mine = ranks[0]->begin_barrier("the commit of step 7");
  Ticket theirs = ranks[1]->begin_barrier("the commit of step 7");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the calls have been exchanged
  ranks[0]->abort("the disk is full");
  EXPECT_THAT(message_of<Error>([&] { theirs.finish(); }),
              HasSubstr("rank 0 of 3 has aborted (the disk is full)"));
  EXPECT_THAT(message_of<Error>([&] { mine.finish(); }), HasSubstr("aborted: the disk is full"));
}

// The memory of a call that was aborted is not touched after its ticket has ended.
TEST(ThreadCommunicators, AnAbortInTheMiddleOfThePayloadLeavesTheBuffersAlone) {
  for (int round = 0; round < 30; ++round) {
    auto ranks = make_thread_communicators(2);
    auto full = std::make_unique<Bytes>(8U << 20U);
    Bytes other(8U << 20U);
    Ticket mine = ranks[0]->begin_reduce_scatter(*full, DType::bf16, "gradients");
    Ticket theirs = ranks[1]->begin_reduce_scatter(other, DType::bf16, "gradients");
    ranks[0]->abort("a test");
    mine.wait();
    full.reset();  // AddressSanitizer sees a late use
    for (Ticket* ticket : {&mine, &theirs}) {
      const std::exception_ptr error = error_of([&] { ticket->finish(); });
      if (error) {
        EXPECT_THAT(message_of(error), HasSubstr("a test"));
      }
    }
  }
}

// Rank 0 has lent its part to the others, which read it where it is.
TEST(ThreadCommunicators, AnAbortDuringASumOfThreeRanksEndsAllOfThem) {
  for (int round = 0; round < 60; ++round) {
    auto ranks = make_thread_communicators(3);
    std::vector<std::exception_ptr> errors(3);
    std::thread aborting([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(20 * round));
      ranks[0]->abort("a test");
    });
    on_threads(ranks, [&](Communicator& comm) {
      const auto full = std::make_unique<Bytes>(3U << 19U);  // freed when the call has ended
      errors[static_cast<std::size_t>(comm.rank())] =
          error_of([&] { comm.reduce_scatter(*full, DType::fp32, "gradients"); });
    });
    aborting.join();
    for (const std::exception_ptr& error : errors) {
      if (error) {
        EXPECT_THAT(message_of(error), HasSubstr("a test"));
      }
    }
  }
}

TEST(ThreadCommunicators, ACommunicatorDestroyedDuringACallEndsIt) {
  auto ranks = make_thread_communicators(2);
  Ticket call = ranks[0]->begin_barrier("the start");
  ranks[0].reset();
  EXPECT_THAT(message_of<Error>([&] { call.finish(); }), HasSubstr("destroyed"));
  // Rank 0 may have come to the barrier before its communicator was destroyed; it comes to no
  // other.
  std::exception_ptr error = error_of([&] { ranks[1]->barrier("the start"); });
  if (!error) error = error_of([&] { ranks[1]->barrier("the end"); });
  EXPECT_THAT(message_of(error), HasSubstr("rank 0 of 2 has aborted"));
}

void send(Communicator& comm, const Bytes& bytes, int to) {
  comm.perform(HostCall{{Operation::send, Element::bytes, to, "a shard"}, bytes, {}});
}

TEST(ThreadCommunicators, SendAndACollectiveDisagreeAndEndAllRanks) {
  auto ranks = make_thread_communicators(3);
  std::vector<std::string> errors(3);
  on_threads(ranks, [&](Communicator& comm) {
    Bytes bytes(6);
    errors[static_cast<std::size_t>(comm.rank())] = message_of<Error>([&] {
      if (comm.rank() == 0) return send(comm, bytes, 1);
      comm.all_gather(bytes, "unit h.1");
    });
  });
  for (const auto& error : errors)
    EXPECT_THAT(error, HasSubstr("rank 0 called send of a shard, 6 bytes to rank 1"));
}

// Rank 1 has the header of rank 0 and waits for that of rank 2, which sees the abort of rank 0
// first.
TEST(ThreadCommunicators, AnAbortReachesARankThatWaitsForAnotherOne) {
  auto ranks = make_thread_communicators(3);
  std::vector<std::string> errors(3);
  std::atomic<bool> has_failed = false;
  on_threads(ranks, [&](Communicator& comm) {
    Bytes bytes(6);
    errors[static_cast<std::size_t>(comm.rank())] = message_of<Error>([&] {
      if (comm.rank() == 0) return send(comm, bytes, 1);
      if (comm.rank() == 2) has_failed.wait(false);
      comm.all_gather(bytes, "unit h.1");
    });
    if (comm.rank() == 0) {
      has_failed = true;
      has_failed.notify_all();
    }
  });
  for (const auto& error : errors)
    EXPECT_THAT(error, HasSubstr("rank 0 called send of a shard, 6 bytes to rank 1"));
}

TEST(ThreadCommunicators, TwoRanksThatBothSendFirstAreToldSo) {
  auto ranks = make_thread_communicators(2);
  std::vector<std::string> errors(2);
  on_threads(ranks, [&](Communicator& comm) {
    Bytes bytes(6);
    errors[static_cast<std::size_t>(comm.rank())] =
        message_of<Error>([&] { send(comm, bytes, 1 - comm.rank()); });
  });
  for (const auto& error : errors) EXPECT_THAT(error, HasSubstr("ranks disagree"));
}

TEST(ThreadCommunicators, NoRankAtAllIsRefused) {
  EXPECT_THROW(make_thread_communicators(0), InvalidArgument);
}

TEST(SingleRank, EveryCollectiveIsTheIdentity) {
  const auto comm = make_single_rank();
  std::array<double, 2> values{0.1, -3.0};
  comm->all_reduce(values);
  EXPECT_EQ(values, (std::array<double, 2>{0.1, -3.0}));
  Bytes bytes(6);
  EXPECT_THROW(comm->broadcast(bytes, 1), InvalidArgument);
  comm->abort("a test");
  EXPECT_THAT(message_of<Error>([&] { comm->barrier(); }), HasSubstr("a test"));
}

TEST(RankCall, TextNamesTheOtherRankOrTheRoot) {
  const auto text = [](Operation operation, Element element) {
    return text_of(RankCall{operation, element, 1, "x"}, 8, 4);
  };
  EXPECT_EQ(text(Operation::reduce, Element::fp32), "reduce of x, 8 bytes of fp32, root 1");
  EXPECT_EQ(text(Operation::scatter, Element::bytes), "scatter of x, 8 bytes, root 1");
  EXPECT_EQ(text(Operation::gather, Element::bytes), "gather of x, 8 bytes, root 1");
  EXPECT_EQ(text(Operation::send, Element::bytes), "send of x, 8 bytes to rank 1");
  EXPECT_EQ(text(Operation::receive, Element::bytes), "receive of x, 8 bytes from rank 1");
}

// Each named function is one call, with what it was given.
TEST(Communicator, NamedFunctionsMakeTheirCalls) {
  struct Recorder final : Communicator {
    using Communicator::begin;
    int rank() const override { return 0; }
    int world_size() const override { return 2; }
    Ticket begin(const HostCall& call) override {
      calls.push_back(text_of(call, call.input.size(), call.output.size()) + " in " +
                      std::to_string(call.input.size()) + " out " +
                      std::to_string(call.output.size()));
      return {};
    }
    void abort(const AbortReason&) override {}
    CommunicatorCounters counters() const override { return {}; }
    void observe(CallObserver) override {}
    std::vector<std::string> calls;
  } comm;
  Bytes a(8);
  std::array<double, 2> sums{};
  comm.begin_all_gather(a, "w").finish();
  comm.begin_reduce_scatter(a, DType::bf16, "g").finish();
  comm.all_reduce(sums, "s");
  comm.broadcast(a, 1, "p");
  comm.begin_barrier("e").finish();
  EXPECT_THAT(comm.calls, testing::ElementsAre("all_gather of w, 8 bytes in 0 out 8",
                                               "reduce_scatter of g, 8 bytes of bf16 in 0 out 8",
                                               "all_reduce of s, 16 bytes of fp64 in 0 out 16",
                                               "broadcast of p, 8 bytes, root 1 in 0 out 8",
                                               "barrier of e in 0 out 0"));
  EXPECT_THROW(static_cast<void>(comm.begin(DeviceCall{})), InvalidArgument);
}

}  // namespace
}  // namespace sluice::zero
