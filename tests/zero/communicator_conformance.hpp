#pragma once
// The behaviour of every Communicator. A program of tests instantiates the suite with its
// communicators. Each body runs once for each rank that this process has: all of them as threads,
// or its own one where ranks are processes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "rank_numbers.hpp"
#include "sluice/base/error.hpp"
#include "sluice/zero/communicator.hpp"

namespace sluice::zero::test {

struct CommunicatorCase {
  std::string name;
  int world_size = 1;
  // Calls `body` for each rank of this process, with a communicator that no call was made on, or
  // whose calls have all ended.
  std::function<void(const std::function<void(Communicator&)>& body)> run;
  // Begins a call on a copy of the memory where the communicator works (host or device), and brings
  // back what it wrote. Empty: a HostCall on the memory itself.
  std::function<Ticket(Communicator&, const RankCall&, Bytes& input, Bytes& output)> begin = {};
  bool sums_in_rank_order = true;  // else only sums that round nowhere are compared
  bool ranks_compare_calls = true;
};
inline void PrintTo(const CommunicatorCase& each, std::ostream* out) {
  *out << each.name << ", " << each.world_size << " ranks";
}

class CommunicatorConformance : public testing::TestWithParam<CommunicatorCase> {
 protected:
  // No multiple of what sums or messages are split into.
  static constexpr std::size_t kPerShard = 70'001;

  static std::size_t ranks() { return static_cast<std::size_t>(GetParam().world_size); }
  static void on_every_rank(const std::function<void(Communicator&)>& body) {
    GetParam().run(body);
  }
  static Ticket begin(Communicator& comm, const RankCall& call, Bytes& input, Bytes& output) {
    if (GetParam().begin) return GetParam().begin(comm, call, input, output);
    return comm.begin(HostCall{call, input, output});
  }
  static void perform(Communicator& comm, const RankCall& call, Bytes& input, Bytes& output) {
    begin(comm, call, input, output).finish();
  }
  static void perform(Communicator& comm, const RankCall& call, Bytes& output) {
    Bytes none;
    perform(comm, call, none, output);
  }
  // The bytes of rank `rank`.
  static Bytes pattern(int rank, std::size_t size_bytes) {
    Bytes bytes(size_bytes);
    for (std::size_t i = 0; i < size_bytes; ++i)
      bytes[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(rank) * 31 + i / 251);
    return bytes;
  }
  static Bytes values_of(int rank, std::size_t count, Element element) {
    return encode(numbers(rank, count, !GetParam().sums_in_rank_order), element);
  }
  static const Bytes& all_values(int rank, std::size_t count, Element element) {
    static std::mutex mutex;
    static std::map<std::tuple<int, std::size_t, Element, bool>, Bytes> made;
    const std::lock_guard lock(mutex);
    Bytes& bytes = made[{rank, count, element, GetParam().sums_in_rank_order}];
    if (bytes.empty()) bytes = values_of(rank, count, element);
    return bytes;
  }
  // The sum over all ranks, in their order, rounded once.
  static Bytes sum_of(std::size_t count, Element element) {
    std::vector<double> sums(count);
    for (int rank = 0; rank < GetParam().world_size; ++rank) {
      const Bytes& values = all_values(rank, count, element);
      for (std::size_t i = 0; i < count; ++i) {
        const double sum = sums[i] + decode(values, i, element);
        // A sum of two floats in double, rounded to float, is the float sum.
        sums[i] = element == Element::fp64 ? sum : static_cast<double>(static_cast<float>(sum));
      }
    }
    return encode(sums, element);
  }
  static void expect_sums(const Bytes& values, std::size_t begin, std::size_t end,
                          std::size_t count, Element element) {
    const Bytes expected = sum_of(count, element);
    const auto at = [&](const Bytes& bytes, std::size_t i) {
      return bytes.begin() + static_cast<std::ptrdiff_t>(i * size_of(element));
    };
    EXPECT_TRUE(std::equal(at(values, begin), at(values, end), at(expected, begin)))
        << name_of(element);
  }
};

inline constexpr Element kSummed[] = {Element::fp32, Element::bf16, Element::fp16};

TEST_P(CommunicatorConformance, AllGatherGivesEveryRankEveryShard) {
  on_every_rank([](Communicator& comm) {
    Bytes full(kPerShard * ranks());
    const auto me = static_cast<std::size_t>(comm.rank());
    const Bytes own = pattern(comm.rank(), kPerShard);
    std::copy(own.begin(), own.end(), full.begin() + static_cast<std::ptrdiff_t>(me * kPerShard));
    perform(comm, {Operation::all_gather, Element::bytes, 0, "the gather"}, full);
    Bytes expected;
    for (int rank = 0; rank < comm.world_size(); ++rank) {
      const Bytes shard = pattern(rank, kPerShard);
      expected.insert(expected.end(), shard.begin(), shard.end());
    }
    EXPECT_TRUE(full == expected);
  });
}

TEST_P(CommunicatorConformance, ReduceScatterGivesEveryRankItsShardOfTheSum) {
  on_every_rank([](Communicator& comm) {
    for (const Element element : kSummed) {
      const std::size_t count = kPerShard * ranks();
      Bytes full = all_values(comm.rank(), count, element);
      perform(comm, {Operation::reduce_scatter, element, 0, "gradients"}, full);
      const std::size_t begin = static_cast<std::size_t>(comm.rank()) * kPerShard;
      expect_sums(full, begin, begin + kPerShard, count, element);
    }
  });
}

// Fewer elements than ranks, an uneven split, and one that takes several blocks.
TEST_P(CommunicatorConformance, AllReduceGivesEveryRankTheSum) {
  on_every_rank([](Communicator& comm) {
    for (const Element element : {Element::fp32, Element::bf16, Element::fp16, Element::fp64}) {
      for (const std::size_t count : {std::size_t{1}, std::size_t{7}, kPerShard}) {
        Bytes values = all_values(comm.rank(), count, element);
        perform(comm, {Operation::all_reduce, element, 0, "the norm"}, values);
        expect_sums(values, 0, count, count, element);
      }
    }
  });
}

TEST_P(CommunicatorConformance, ReduceGivesTheRootTheSumAndLeavesTheOthers) {
  on_every_rank([](Communicator& comm) {
    for (int root = 0; root < comm.world_size(); ++root) {
      for (const Element element : kSummed) {
        Bytes values = all_values(comm.rank(), kPerShard, element);
        perform(comm, {Operation::reduce, element, root, "a loss"}, values);
        if (comm.rank() == root) {
          expect_sums(values, 0, kPerShard, kPerShard, element);
        } else {
          EXPECT_TRUE(values == all_values(comm.rank(), kPerShard, element));
        }
      }
    }
  });
}

TEST_P(CommunicatorConformance, BroadcastTakesTheBytesOfTheRoot) {
  on_every_rank([](Communicator& comm) {
    for (int root = 0; root < comm.world_size(); ++root) {
      Bytes bytes = pattern(comm.rank(), kPerShard);
      perform(comm, {Operation::broadcast, Element::bytes, root, "the plan"}, bytes);
      EXPECT_TRUE(bytes == pattern(root, kPerShard)) << "root " << root;
    }
  });
}

TEST_P(CommunicatorConformance, ScatterGivesEveryRankItsShardOfTheRoot) {
  on_every_rank([](Communicator& comm) {
    for (int root = 0; root < comm.world_size(); ++root) {
      const Bytes whole = pattern(root, kPerShard * ranks());
      Bytes input = comm.rank() == root ? whole : Bytes();
      Bytes shard(kPerShard);
      perform(comm, {Operation::scatter, Element::bytes, root, "shards"}, input, shard);
      const auto begin = whole.begin() + comm.rank() * static_cast<std::ptrdiff_t>(kPerShard);
      EXPECT_TRUE(std::equal(shard.begin(), shard.end(), begin)) << "root " << root;
    }
  });
}

TEST_P(CommunicatorConformance, GatherGivesTheRootEveryShard) {
  on_every_rank([](Communicator& comm) {
    for (int root = 0; root < comm.world_size(); ++root) {
      Bytes shard = pattern(comm.rank(), kPerShard);
      Bytes whole(comm.rank() == root ? kPerShard * ranks() : 0);
      perform(comm, {Operation::gather, Element::bytes, root, "shards"}, shard, whole);
      if (comm.rank() != root) continue;
      for (int rank = 0; rank < comm.world_size(); ++rank) {
        const Bytes expected = pattern(rank, kPerShard);
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                               whole.begin() + rank * static_cast<std::ptrdiff_t>(kPerShard)));
      }
    }
  });
}

// Even ranks send to the next one first, odd ranks receive first; then the other way round.
TEST_P(CommunicatorConformance, SendAndReceiveMoveBytesBetweenTwoRanks) {
  on_every_rank([](Communicator& comm) {
    Bytes none;
    for (int from = 0; from < comm.world_size(); ++from) {
      const int to = (from + 1) % comm.world_size();
      if (from == to) continue;
      Bytes sent = pattern(from, kPerShard);
      Bytes received(kPerShard);
      if (comm.rank() == from)
        perform(comm, {Operation::send, Element::bytes, to, "a shard"}, sent, none);
      if (comm.rank() == to) {
        perform(comm, {Operation::receive, Element::bytes, from, "a shard"}, received);
        EXPECT_TRUE(received == sent);
      }
    }
  });
}

TEST_P(CommunicatorConformance, EmptyBuffersAreFine) {
  on_every_rank([](Communicator& comm) {
    for (const Operation operation :
         {Operation::all_gather, Operation::reduce_scatter, Operation::all_reduce,
          Operation::broadcast, Operation::reduce, Operation::scatter, Operation::gather}) {
      Bytes none;
      EXPECT_NO_THROW(perform(comm, {operation, Element::fp32, 0, "nothing"}, none));
    }
    EXPECT_NO_THROW(comm.barrier());
  });
}

// Ranks come at different times, and begin several calls before they finish one.
TEST_P(CommunicatorConformance, CallsRunInTheOrderInWhichTheyWereBegun) {
  on_every_rank([](Communicator& comm) {
    constexpr int kCalls = 12;
    std::mt19937 random(static_cast<unsigned>(comm.rank()));
    for (int round = 0; round < 15; ++round) {
      std::vector<Bytes> sums(kCalls);
      Bytes none;
      std::vector<Ticket> tickets;
      for (int i = 0; i < kCalls; ++i) {
        if (random() % 8 == 0)
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
        sums[static_cast<std::size_t>(i)] = encode({double(i * (comm.rank() + 1))}, Element::fp32);
        tickets.push_back(begin(comm, {Operation::all_reduce, Element::fp32, 0, std::to_string(i)},
                                none, sums[static_cast<std::size_t>(i)]));
      }
      comm.barrier("the end of the round");
      // Where results are brought back, that may come later than the call's end.
      EXPECT_TRUE(GetParam().begin || all_done(tickets));
      finish_all(tickets);
      for (int i = 0; i < kCalls; ++i) {
        EXPECT_EQ(decode(sums[static_cast<std::size_t>(i)], 0, Element::fp32),
                  i * comm.world_size() * (comm.world_size() + 1) / 2);
      }
    }
  });
}

TEST_P(CommunicatorConformance, CountsCallsAndPayload) {
  on_every_rank([](Communicator& comm) {
    const auto bytes_of = [&](Operation operation) {
      std::pair<std::uint64_t, std::uint64_t> sum;
      for (const CallCounts& each : comm.counters().calls)
        if (each.operation == operation)
          sum = {sum.first + each.calls, sum.second + each.sent_bytes};
      return sum;
    };
    const auto others = static_cast<std::uint64_t>(comm.world_size() - 1);
    const auto gathers = bytes_of(Operation::all_gather);
    const auto reductions = bytes_of(Operation::reduce_scatter);
    Bytes full(4096 * ranks());
    perform(comm, {Operation::all_gather, Element::bytes, 0, "weights"}, full);
    perform(comm, {Operation::reduce_scatter, Element::bf16, 0, "gradients"}, full);
    EXPECT_EQ(bytes_of(Operation::all_gather).first, gathers.first + 1);
    EXPECT_EQ(bytes_of(Operation::all_gather).second, gathers.second + others * 4096);
    EXPECT_EQ(bytes_of(Operation::reduce_scatter).first, reductions.first + 1);
    EXPECT_EQ(bytes_of(Operation::reduce_scatter).second, reductions.second + others * 4096);
  });
}

TEST_P(CommunicatorConformance, CallsThatCannotBeAreRefusedOnEveryRank) {
  on_every_rank([](Communicator& comm) {
    if (comm.world_size() == 1) return;  // every size divides by 1
    Bytes odd(ranks() * 4 + 1);
    const auto gather = message_of<Error>([&] {
      perform(comm, {Operation::all_gather, Element::bytes, 0, "odd"}, odd);
    });
    EXPECT_THAT(gather, testing::HasSubstr("all_gather of " + std::to_string(odd.size())));
    Bytes halves(ranks() * 3);
    const auto reduce = message_of<Error>([&] {
      perform(comm, {Operation::reduce_scatter, Element::bf16, 0, "odd"}, halves);
    });
    EXPECT_THAT(reduce, testing::HasSubstr("elements of 2 bytes"));
    Bytes large(ranks() * 8192);  // no message of it is eager
    const auto sum = message_of<Error>([&] {
      perform(comm, {Operation::all_reduce, Element::bytes, 0, "no numbers"}, large);
    });
    EXPECT_THAT(sum, testing::HasSubstr("bytes have no sum"));
    Bytes none;
    const auto root = message_of<Error>([&] {
      perform(comm, {Operation::broadcast, Element::bytes, comm.world_size(), "no root"}, none);
    });
    EXPECT_THAT(root, testing::HasSubstr("broadcast with root"));
    const auto self = message_of<Error>([&] {
      perform(comm, {Operation::send, Element::bytes, comm.rank(), ""}, none);
    });
    EXPECT_THAT(self, testing::HasSubstr("which is the rank itself"));
    comm.barrier("after the mistakes");
  });
}

TEST_P(CommunicatorConformance, CallsThatDisagreeFailOnEveryRankAndTheNextCallWorks) {
  if (!GetParam().ranks_compare_calls || GetParam().world_size == 1) return;
  on_every_rank([](Communicator& comm) {
    const bool first = comm.rank() == 0;
    Bytes bytes(ranks() * (first ? 8 : 16));
    const auto operation = message_of<Error>([&] {
      if (first) return comm.barrier("the end");
      perform(comm, {Operation::all_gather, Element::bytes, 0, "unit h.1"}, bytes);
    });
    EXPECT_THAT(operation, testing::HasSubstr("rank 0 called barrier of the end; rank 1 called "
                                              "all_gather of unit h.1, " +
                                              std::to_string(ranks() * 16) + " bytes"));
    const auto size = message_of<Error>([&] {
      perform(comm, {Operation::all_gather, Element::bytes, 0, "unit h.1"}, bytes);
    });
    EXPECT_THAT(size, testing::HasSubstr(std::to_string(ranks() * 8) + " bytes; rank 1 called"));
    Bytes equal(ranks() * 8);
    // A rank that skips a unit of equal size would get another unit's weights.
    const auto unit = message_of<Error>([&] {
      perform(comm, {Operation::all_gather, Element::bytes, 0, first ? "unit h.1" : "unit h.2"},
              equal);
    });
    EXPECT_THAT(unit, testing::HasSubstr("unit h.2"));
    std::array<double, 1> one{1.0};
    comm.all_reduce(one, "after the mistakes");
    EXPECT_EQ(one[0], comm.world_size());
  });
}

TEST_P(CommunicatorConformance, AQueuedCallThatDisagreesTakesNothingFromTheCallsBehindIt) {
  if (!GetParam().ranks_compare_calls || GetParam().world_size == 1) return;
  on_every_rank([](Communicator& comm) {
    constexpr int kRounds = 20;
    const auto value = [](int round, int rank) { return double(10 * round + rank + 1); };
    std::mt19937 random(static_cast<unsigned>(comm.rank()));
    for (int round = 0; round < kRounds; ++round) {
      const bool skips = comm.rank() == round % comm.world_size();
      Bytes none;
      Bytes wrong = encode(std::vector<double>(ranks() * 3000, -1.0), Element::fp32);
      Bytes sum = encode(std::vector<double>(ranks(), value(round, comm.rank())), Element::fp32);
      Bytes full = sum;
      std::vector<Ticket> tickets;
      const Operation first = round % 2 == 0 ? Operation::all_gather : Operation::reduce_scatter;
      const Element element = round % 2 == 0 ? Element::bytes : Element::fp32;
      tickets.push_back(
          skips ? begin(comm, {Operation::barrier, Element::bytes, 0, "the end"}, none, none)
                : begin(comm, {first, element, 0, "unit h.1"}, none, wrong));
      if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      tickets.push_back(
          begin(comm, {Operation::all_gather, Element::bytes, 0, "unit h.2"}, none, full));
      tickets.push_back(
          begin(comm, {Operation::reduce_scatter, Element::fp32, 0, "unit h.2"}, none, sum));
      EXPECT_THROW(tickets[0].finish(), Error);
      tickets[1].finish();
      tickets[2].finish();
      double all = 0;
      for (int rank = 0; rank < comm.world_size(); ++rank) {
        EXPECT_EQ(decode(full, static_cast<std::size_t>(rank), Element::fp32), value(round, rank));
        all += value(round, rank);
      }
      EXPECT_EQ(decode(sum, static_cast<std::size_t>(comm.rank()), Element::fp32), all);
    }
  });
}

}  // namespace sluice::zero::test
