// Communicators of NCCL over a fake NCCL and a fake CUDA: the suite that all communicators pass,
// the order after compute work, and calls that fail.

#include "nccl/nccl_communicator.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "fake_ranks.hpp"
#include "sluice/base/error_of.hpp"
#include "zero/communicator_conformance.hpp"

namespace sluice::zero {
namespace {

using offload::test::Gate;
using test::Bytes;
using test::CommunicatorCase;
using test::CommunicatorConformance;
using test::FakeRanks;
using test::give_time_for_mistakes;
using test::MemoryStore;
using test::message_of;
using testing::AllOf;
using testing::HasSubstr;

// Late by seeded times, and in progress for some looks.
CommunicatorCase fake_nccl(int world_size) {
  const auto current = std::make_shared<FakeRanks*>(nullptr);
  CommunicatorCase each{"a fake NCCL", world_size, [world_size, current](const auto& body) {
                          FakeRanks ranks(world_size);
                          ranks.nccl->looks_in_progress = 2;
                          std::atomic<unsigned> seed{0};
                          ranks.nccl->before_work = [&seed] {
                            std::mt19937 random(seed++);
                            std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
                          };
                          *current = &ranks;
                          ranks.join();
                          test::on_threads(ranks.ranks, body);
                        }};
  each.begin = [current](Communicator& comm, const RankCall& call, Bytes& input, Bytes& output) {
    return (*current)->begin(comm, call, input, output);
  };
  each.sums_in_rank_order = false;
  each.ranks_compare_calls = false;
  return each;
}

INSTANTIATE_TEST_SUITE_P(Nccl, CommunicatorConformance,
                         testing::Values(fake_nccl(1), fake_nccl(2), fake_nccl(4)));

class NcclRanks : public testing::Test {
 protected:
  NcclRanks() : buffer{memory_of(0), memory_of(1)} { ranks.join(); }
  offload::Buffer memory_of(std::size_t rank) {
    return ranks.devices[rank]->memory().allocate(kBytes, "a unit");
  }
  Ticket gather(std::size_t rank) {
    return ranks.ranks[rank]->begin_all_gather(buffer[rank].device_span().first(kBytes),
                                               ranks.devices[rank]->mark_compute(), "unit h.3");
  }
  static constexpr std::size_t kBytes = 8192;
  FakeRanks ranks{2};
  offload::Buffer buffer[2];
};

TEST_F(NcclRanks, ACallBeginsOnceComputeWorkHasReachedItsPoint) {
  Gate gate;
  for (const std::size_t rank : {0U, 1U}) {
    const auto span = buffer[rank].device_span();
    ranks.cuda->launch(ranks.streams[rank], [this, wait = gate.waiter(), span, rank] {
      wait();
      std::fill_n(ranks.cuda->as_device(span.address()), kBytes, static_cast<std::byte>(rank + 5));
    });
  }
  Ticket first = gather(0);
  Ticket second = gather(1);
  give_time_for_mistakes();
  EXPECT_FALSE(first.done());
  gate.open();
  first.finish();
  second.finish();
  Bytes seen(kBytes);
  ranks.devices[0]->begin_copy_out(seen, buffer[0].device_span().first(kBytes)).finish();
  EXPECT_EQ(seen.front(), std::byte{5});
  EXPECT_EQ(seen.back(), std::byte{6});
}

// Half of the memory: what rank 0 scatters or gathers. The other rank has no such memory.
offload::DeviceSpan whole_at_root(const Communicator& comm, offload::DeviceSpan memory) {
  return comm.rank() == 0 ? memory.first(memory.size_bytes() / 2) : offload::DeviceSpan();
}

// The call of a rank on its memory. Rank 0 sends, where rank 1 receives.
DeviceCall call_of(const Communicator& comm, Operation operation, offload::DeviceSpan memory) {
  const offload::DeviceSpan shard =
      memory.subspan(3 * (memory.size_bytes() / 4), memory.size_bytes() / 4);
  switch (operation) {
    case Operation::reduce_scatter:
    case Operation::all_reduce:
    case Operation::reduce:
      return {{operation, Element::fp32, 0, "u"}, {}, memory, {}};
    case Operation::scatter:
      return {{operation, Element::bytes, 0, "u"}, whole_at_root(comm, memory), shard, {}};
    case Operation::gather:
      return {{operation, Element::bytes, 0, "u"}, shard, whole_at_root(comm, memory), {}};
    case Operation::send:
      if (comm.rank() == 0) return {{operation, Element::bytes, 1, "u"}, memory, {}, {}};
      return {{Operation::receive, Element::bytes, 0, "u"}, {}, memory, {}};
    default:
      return {{operation, Element::bytes, 0, "u"}, {}, memory, {}};
  }
}

TEST_F(NcclRanks, CallsOfEveryKindWaitForTheirPoint) {
  for (const Operation operation : {Operation::all_gather, Operation::reduce_scatter,
                                    Operation::all_reduce, Operation::broadcast, Operation::reduce,
                                    Operation::scatter, Operation::gather, Operation::send}) {
    for (const std::size_t late : {0U, 1U}) {
      Gate gate;
      ranks.cuda->launch(ranks.streams[late], gate.waiter());
      Ticket tickets[2];
      for (const std::size_t rank : {0U, 1U}) {
        Communicator& comm = *ranks.ranks[rank];
        DeviceCall call = call_of(comm, operation, buffer[rank].device_span().first(kBytes));
        call.after = ranks.devices[rank]->mark_compute();
        tickets[rank] = comm.begin(call);
      }
      give_time_for_mistakes();
      EXPECT_FALSE(tickets[late].done()) << name_of(operation) << ", rank " << late;
      gate.open();
      for (Ticket& ticket : tickets) ticket.finish();
    }
  }
}

TEST_F(NcclRanks, HostMemoryIsRefused) {
  Bytes bytes(8);
  EXPECT_THAT(message_of<Error>([&] { ranks.ranks[0]->all_gather(bytes, "unit h.1"); }),
              HasSubstr("works on memory of a device"));
}

TEST_F(NcclRanks, ACallThatNcclRefusesNamesRankUnitAndReasonAndEndsTheCommunicator) {
  ranks.nccl->fail("all_gather", 1, ncclInternalError);
  const std::string error = message_of<Error>([&] { gather(0).finish(); });
  EXPECT_THAT(error, AllOf(HasSubstr("rank 0 cannot complete all_gather of unit h.3, 8192 bytes"),
                           HasSubstr("ncclAllGather: a fault of the test")));
  EXPECT_EQ(ranks.nccl->calls("group_end"), ranks.nccl->calls("group_start"));
  EXPECT_EQ(ranks.nccl->calls("abort"), 1);
  EXPECT_THAT(message_of<Error>([&] { gather(0).finish(); }), HasSubstr("ncclAllGather"));
}

TEST_F(NcclRanks, AnErrorThatComesLateEndsTheWait) {
  Ticket waits = gather(0);  // the other rank does not come
  ranks.nccl->fail_late(ncclRemoteError);
  EXPECT_THAT(message_of<Error>([&] { waits.finish(); }),
              AllOf(HasSubstr("unit h.3"), HasSubstr("a fault of the test")));
  EXPECT_EQ(ranks.nccl->calls("abort"), 1);
}

TEST_F(NcclRanks, AnAbortEndsTheCallsOfBothRanksAndSaysWhy) {
  Ticket waits = gather(0);
  ranks.ranks[1]->abort("the disk is full");
  EXPECT_THAT(message_of<Error>([&] { waits.finish(); }),
              AllOf(HasSubstr("rank 1 has aborted (the disk is full)"),
                    HasSubstr("rank 0 cannot complete all_gather of unit h.3")));
  EXPECT_THAT(message_of<Error>([&] { gather(1).finish(); }), HasSubstr("the disk is full"));
}

TEST_F(NcclRanks, AnAbortHasTheKindOfItsErrorOnTheOtherRank) {
  Ticket waits = gather(0);
  ranks.ranks[1]->abort(AbortReason(std::make_exception_ptr(StorageError("f", "is damaged"))));
  EXPECT_EQ(failure_kind(error_of([&] { waits.finish(); })), FailureKind::storage);
  EXPECT_EQ(failure_kind(error_of([&] { gather(0).finish(); })), FailureKind::storage);
}

TEST_F(NcclRanks, ARankThatLeavesIsNamed) {
  Ticket waits = gather(0);
  ranks.ranks[1].reset();
  EXPECT_THAT(message_of<Error>([&] { waits.finish(); }),
              HasSubstr("rank 1 of 2 has left (see the error of rank 1)"));
}

TEST(NcclLimits, ACallThatTakesTooLongNamesTheRanksThatDoNotWait) {
  FakeRanks ranks(2);
  ranks.join(1.5);
  const auto buffer = ranks.devices[0]->memory().allocate(64, "a unit");
  const std::string error = message_of<Error>([&] {
    ranks.ranks[0]
        ->begin_all_gather(buffer.device_span().first(64), offload::ComputePoint(), "unit h.3")
        .finish();
  });
  EXPECT_THAT(error, AllOf(HasSubstr("unit h.3"), HasSubstr("within 1.5"),
                           HasSubstr("rank 1 does not wait in a call")));
}

TEST(NcclLimits, ARankThatDoesNotJoinIsNamed) {
  FakeRanks ranks(2);
  const std::string error = message_of<Error>(
      [&] { const auto rank = make_nccl_communicator(ranks.nccl, ranks.options(0, 1.5)); });
  EXPECT_THAT(error, AllOf(HasSubstr("rank 0 cannot complete the start of NCCL"),
                           HasSubstr("rank 1 has not joined")));
  MemoryStore none;
  NcclOptions second = ranks.options(1, 0.1);
  second.store = &none;
  EXPECT_THAT(
      message_of<Error>([&] { const auto rank = make_nccl_communicator(ranks.nccl, second); }),
      HasSubstr("rank 0 has not started NCCL in time"));
}

TEST(NcclLimits, ARankThatFailsAtTheStartEndsTheStartOfTheOthers) {
  FakeRanks ranks(2);
  ranks.nccl->fail("init_rank", 1, ncclSystemError);
  std::array<std::string, 2> errors;
  std::array<std::thread, 2> threads;
  const auto begin = std::chrono::steady_clock::now();
  for (int rank = 0; rank < 2; ++rank) {
    threads[static_cast<std::size_t>(rank)] = std::thread([&, rank] {
      errors[static_cast<std::size_t>(rank)] = message_of<Error>(
          [&] { const auto joined = make_nccl_communicator(ranks.nccl, ranks.options(rank, 60)); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  std::sort(errors.begin(), errors.end(),
            [](const auto& a, const auto& b) { return a.size() < b.size(); });
  EXPECT_THAT(errors[0], HasSubstr("ncclCommInitRankConfig: a fault of the test"));
  EXPECT_THAT(errors[1], AllOf(HasSubstr("has aborted"), HasSubstr("a fault of the test")));
}

TEST(NcclLibrary, IsLoadedByNameWithAllItsFunctions) {
  std::string why_not;
  const auto api = load_nccl(why_not);
  if (api == nullptr) GTEST_SKIP() << why_not;
  EXPECT_FALSE(api->error_text(ncclInternalError, nullptr).empty());
}

}  // namespace
}  // namespace sluice::zero
