#include "sluice/zero/communicator.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "sluice/base/error.hpp"

namespace sluice::zero {
namespace {

using testing::HasSubstr;

// Runs `body` on one thread per rank and rethrows nothing: bodies record what they see.
void on_every_rank(std::vector<std::unique_ptr<Communicator>>& ranks,
                   const std::function<void(Communicator&)>& body) {
  std::vector<std::thread> threads;
  for (auto& rank : ranks) threads.emplace_back([&body, &rank] { body(*rank); });
  for (std::thread& thread : threads) thread.join();
}

std::optional<std::string> error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return std::nullopt;
}

std::vector<std::byte> encode(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::byte* to = bytes.data() + i * size_of(dtype);
    if (dtype == DType::fp32) {
      std::memcpy(to, &values[i], 4);
    } else {
      const std::uint16_t bits =
          dtype == DType::bf16 ? to_bf16(values[i]).bits : to_fp16(values[i]).bits;
      std::memcpy(to, &bits, 2);
    }
  }
  return bytes;
}

float decode(const std::vector<std::byte>& bytes, std::size_t i, DType dtype) {
  if (dtype == DType::fp32) {
    float value = 0;
    std::memcpy(&value, bytes.data() + i * 4, 4);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, bytes.data() + i * 2, 2);
  return dtype == DType::bf16 ? to_fp32(Bf16{bits}) : to_fp32(Fp16{bits});
}

// The data of every rank; kPerShard is no multiple of the block that sums are taken in.
constexpr std::size_t kPerShard = 2500;
std::vector<std::vector<std::byte>> random_buffers(int world_size, DType dtype) {
  std::vector<std::vector<std::byte>> buffers;
  for (int rank = 0; rank < world_size; ++rank) {
    std::mt19937 random(static_cast<unsigned>(100 + rank));
    std::normal_distribution<float> normal(0.0F, 3.0F);
    std::vector<float> values(kPerShard * static_cast<std::size_t>(world_size));
    for (float& value : values) value = normal(random);
    buffers.push_back(encode(values, dtype));
  }
  return buffers;
}

struct Case {
  int world_size;
  DType dtype;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.world_size << " ranks, " << name_of(c.dtype);
}

class ThreadCommunicator : public testing::TestWithParam<Case> {};

TEST_P(ThreadCommunicator, AllGatherGivesEveryRankEveryShard) {
  const auto [world_size, dtype] = GetParam();
  auto ranks = make_thread_communicators(world_size);
  auto buffers = random_buffers(world_size, dtype);
  const std::size_t shard = kPerShard * size_of(dtype);
  std::vector<std::byte> expected;
  for (int rank = 0; rank < world_size; ++rank) {
    const auto begin = buffers[static_cast<std::size_t>(rank)].begin() +
                       static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rank) * shard);
    expected.insert(expected.end(), begin, begin + static_cast<std::ptrdiff_t>(shard));
  }
  on_every_rank(ranks, [&](Communicator& comm) {
    comm.all_gather(buffers[static_cast<std::size_t>(comm.rank())]);
  });
  for (const auto& buffer : buffers) EXPECT_EQ(buffer, expected);
}

TEST_P(ThreadCommunicator, ReduceScatterSumsInRankOrderAndRoundsOnce) {
  const auto [world_size, dtype] = GetParam();
  auto ranks = make_thread_communicators(world_size);
  const auto before = random_buffers(world_size, dtype);
  auto buffers = before;
  on_every_rank(ranks, [&, kind = dtype](Communicator& comm) {
    comm.reduce_scatter(buffers[static_cast<std::size_t>(comm.rank())], kind);
  });
  for (std::size_t rank = 0; rank < buffers.size(); ++rank) {
    for (std::size_t i = rank * kPerShard; i < (rank + 1) * kPerShard; ++i) {
      float sum = decode(before[0], i, dtype);
      for (std::size_t other = 1; other < before.size(); ++other) {
        sum += decode(before[other], i, dtype);
      }
      const float rounded = decode(encode({sum}, dtype), 0, dtype);
      ASSERT_EQ(decode(buffers[rank], i, dtype), rounded) << "rank " << rank << " element " << i;
    }
  }
}

TEST_P(ThreadCommunicator, AllReduceGivesTheSameBitsOnEveryRank) {
  const int world_size = GetParam().world_size;
  auto ranks = make_thread_communicators(world_size);
  std::vector<std::vector<double>> values;
  for (int rank = 0; rank < world_size; ++rank) {
    values.push_back({1.0 / (rank + 3), std::pow(10.0, 8 - 4 * rank), -0.1 * rank});
  }
  std::vector<double> expected(3, 0.0);
  for (const auto& of_rank : values) {
    for (std::size_t i = 0; i < 3; ++i) expected[i] += of_rank[i];
  }
  on_every_rank(ranks, [&](Communicator& comm) {
    comm.all_reduce(values[static_cast<std::size_t>(comm.rank())]);
  });
  for (const auto& of_rank : values) EXPECT_EQ(of_rank, expected);
}

TEST_P(ThreadCommunicator, BroadcastTakesTheBytesOfTheRoot) {
  const auto [world_size, dtype] = GetParam();
  auto ranks = make_thread_communicators(world_size);
  auto buffers = random_buffers(world_size, dtype);
  const int root = world_size - 1;
  const auto expected = buffers.back();
  on_every_rank(ranks, [&](Communicator& comm) {
    comm.broadcast(buffers[static_cast<std::size_t>(comm.rank())], root);
  });
  for (const auto& buffer : buffers) EXPECT_EQ(buffer, expected);
}

TEST_P(ThreadCommunicator, ManyCallsInARowStayInStep) {
  const int world_size = GetParam().world_size;
  auto ranks = make_thread_communicators(world_size);
  std::vector<int> mistakes(static_cast<std::size_t>(world_size), 0);
  on_every_rank(ranks, [&](Communicator& comm) {
    for (int round = 0; round < 300; ++round) {
      std::array<double, 1> sum{static_cast<double>(round * (comm.rank() + 1))};
      comm.all_reduce(sum);
      if (sum[0] != round * world_size * (world_size + 1) / 2.0) {
        ++mistakes[static_cast<std::size_t>(comm.rank())];
      }
      comm.barrier();
    }
  });
  EXPECT_THAT(mistakes, testing::Each(0));
}

INSTANTIATE_TEST_SUITE_P(Worlds, ThreadCommunicator,
                         testing::Values(Case{1, DType::fp32}, Case{1, DType::bf16},
                                         Case{2, DType::fp32}, Case{2, DType::bf16},
                                         Case{3, DType::fp16}, Case{4, DType::bf16},
                                         Case{5, DType::fp32}, Case{5, DType::fp16}));

TEST(ThreadCommunicators, BarrierReturnsOnlyAfterAllHaveCome) {
  auto ranks = make_thread_communicators(4);
  std::atomic<int> arrived{0};
  std::atomic<int> too_early{0};
  on_every_rank(ranks, [&](Communicator& comm) {
    ++arrived;
    comm.barrier();
    if (arrived.load() != 4) ++too_early;
  });
  EXPECT_EQ(too_early.load(), 0);
}

TEST(ThreadCommunicators, ARankThatLeavesEndsTheWaitOfTheOthersAndIsNamed) {
  auto ranks = make_thread_communicators(3);
  std::vector<std::optional<std::string>> errors(3);
  std::thread first([&] { errors[0] = error_of([&] { ranks[0]->barrier(); }); });
  std::thread second([&] {
    std::vector<std::byte> bytes(12);
    errors[2] = error_of([&] { ranks[2]->all_gather(bytes); });
  });
  ranks[1].reset();
  first.join();
  second.join();
  for (const std::size_t rank : {0U, 2U}) {
    ASSERT_TRUE(errors[rank].has_value());
    EXPECT_THAT(*errors[rank], HasSubstr("rank 1 of 3 has left"));
    EXPECT_THAT(*errors[rank], HasSubstr("rank " + std::to_string(rank) + " cannot complete"));
  }
}

TEST(ThreadCommunicators, ARankMayLeaveAfterItsLastCallWhileOthersStillReturnFromIt) {
  for (int round = 0; round < 200; ++round) {
    auto ranks = make_thread_communicators(3);
    std::atomic<int> failures{0};
    std::vector<std::thread> threads;
    for (auto& rank : ranks) {
      threads.emplace_back([&rank, &failures] {
        std::array<double, 2> values{1.0, 2.0};
        if (error_of([&] { rank->all_reduce(values); }).has_value()) ++failures;
        rank.reset();
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(failures.load(), 0) << "round " << round;
  }
}

TEST(ThreadCommunicators, CallsThatDisagreeFailOnEveryRankAndTheNextCallWorks) {
  auto ranks = make_thread_communicators(2);
  std::vector<std::optional<std::string>> operations(2);
  std::vector<std::optional<std::string>> sizes(2);
  std::vector<double> sums(2, 0.0);
  on_every_rank(ranks, [&](Communicator& comm) {
    const auto me = static_cast<std::size_t>(comm.rank());
    std::vector<std::byte> bytes(me == 0 ? 8 : 16);
    operations[me] = error_of([&] {
      if (me == 0) {
        comm.barrier();
      } else {
        comm.all_gather(bytes);
      }
    });
    sizes[me] = error_of([&] { comm.all_gather(bytes); });
    std::array<double, 1> one{1.0};
    comm.all_reduce(one);
    sums[me] = one[0];
  });
  for (const std::size_t rank : {0U, 1U}) {
    ASSERT_TRUE(operations[rank].has_value());
    EXPECT_THAT(*operations[rank], HasSubstr("rank 0 called barrier, rank 1 all_gather"));
    ASSERT_TRUE(sizes[rank].has_value());
    EXPECT_THAT(*sizes[rank], HasSubstr("rank 0 brought 8 bytes, rank 1 16 "));
    EXPECT_EQ(sums[rank], 2.0);
  }
}

TEST(ThreadCommunicators, SizesThatDoNotDivideAreRefused) {
  auto ranks = make_thread_communicators(2);
  std::vector<std::optional<std::string>> gather(2);
  std::vector<std::optional<std::string>> reduce(2);
  on_every_rank(ranks, [&](Communicator& comm) {
    const auto me = static_cast<std::size_t>(comm.rank());
    std::vector<std::byte> odd(7);
    gather[me] = error_of([&] { comm.all_gather(odd); });
    std::vector<std::byte> half_elements(6);
    reduce[me] = error_of([&] { comm.reduce_scatter(half_elements, DType::bf16); });
  });
  for (const std::size_t rank : {0U, 1U}) {
    ASSERT_TRUE(gather[rank].has_value());
    EXPECT_THAT(*gather[rank], HasSubstr("all_gather of 7 bytes"));
    ASSERT_TRUE(reduce[rank].has_value());
    EXPECT_THAT(*reduce[rank], HasSubstr("reduce_scatter of 6 bytes"));
  }
}

TEST(ThreadCommunicators, EmptyBuffersAreFine) {
  auto ranks = make_thread_communicators(3);
  std::atomic<int> failures{0};
  on_every_rank(ranks, [&](Communicator& comm) {
    const auto failed = error_of([&] {
      comm.all_gather({});
      comm.reduce_scatter({}, DType::fp32);
      comm.all_reduce({});
      comm.broadcast({}, 2);
    });
    if (failed.has_value()) ++failures;
  });
  EXPECT_EQ(failures.load(), 0);
}

TEST(ThreadCommunicators, NoRankAtAllIsRefused) {
  EXPECT_THROW(make_thread_communicators(0), InvalidArgument);
}

TEST(SingleRank, EveryCollectiveIsTheIdentity) {
  const auto comm = make_single_rank();
  EXPECT_EQ(comm->rank(), 0);
  EXPECT_EQ(comm->world_size(), 1);
  const auto before = encode({1.5F, -2.0F, 0.25F}, DType::bf16);
  auto bytes = before;
  comm->all_gather(bytes);
  comm->reduce_scatter(bytes, DType::bf16);
  comm->broadcast(bytes, 0);
  comm->barrier();
  EXPECT_EQ(bytes, before);
  std::array<double, 2> values{0.1, -3.0};
  comm->all_reduce(values);
  EXPECT_EQ(values, (std::array<double, 2>{0.1, -3.0}));
  EXPECT_THROW(comm->broadcast(bytes, 1), InvalidArgument);
}

}  // namespace
}  // namespace sluice::zero
