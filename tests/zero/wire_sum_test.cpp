// Sums of gradients that travel in another type or divided, and the log of calls.

#include "wire_sum.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "rank_numbers.hpp"
#include "sluice/zero/call_log.hpp"

namespace sluice::zero::test {
namespace {

using testing::HasSubstr;

std::uint64_t bytes_of(const Communicator& rank, Operation operation) {
  std::uint64_t sum = 0;
  for (const CallCounts& each : rank.counters().calls)
    if (each.operation == operation) sum += each.calls * each.message_bytes;
  return sum;
}

// Each rank's shard of the sum, decoded. `values`: of an element, by rank and index.
using Values = std::function<double(int rank, std::size_t i)>;
struct Sum {
  std::vector<double> elements;
  std::uint64_t message_bytes = 0;  // of one rank's reductions
};
Sum sum_of(int ranks, std::size_t count, DType dtype, const SumFormat& format,
           const Values& values) {
  auto world = make_thread_communicators(ranks);
  Sum sum{std::vector<double>(count), 0};
  const std::size_t shard = count / static_cast<std::size_t>(ranks);
  on_threads(world, [&](Communicator& rank) {
    std::vector<double> own(count);
    for (std::size_t i = 0; i < count; ++i) own[i] = values(rank.rank(), i);
    Bytes full = encode(own, element_of(dtype));
    sum_over_wire(rank, full, dtype, format, /*executor=*/nullptr, "gradients");
    const std::size_t begin = shard * static_cast<std::size_t>(rank.rank());
    for (std::size_t i = begin; i < begin + shard; ++i)
      sum.elements[i] = decode(full, i, element_of(dtype));
  });
  sum.message_bytes = bytes_of(*world.front(), Operation::reduce_scatter);
  return sum;
}

double scattered(int rank, std::size_t i) {
  return static_cast<double>((i * 7919 + static_cast<std::size_t>(rank) * 104729) % 1000) / 512 - 1;
}

// One MiB of a rank is 524,288 elements of a 16-bit type: more than two pieces, and a short one.
constexpr std::size_t kShard = 1'100'000;

TEST(WireSum, InAWiderTypeHasTheBitsOfTheTypeItself) {
  for (const int ranks : {2, 3}) {
    const std::size_t count = 6000;
    const Sum plain = sum_of(ranks, count, DType::bf16, {}, scattered);
    const Sum wide = sum_of(ranks, count, DType::bf16, {.wire_dtype = DType::fp32}, scattered);
    EXPECT_EQ(wide.elements, plain.elements);
    EXPECT_EQ(plain.message_bytes, count * 2);
    EXPECT_EQ(wide.message_bytes, count * 4);
  }
}

TEST(WireSum, InANarrowerTypeIsRoundedBeforeAndAfter) {
  const std::size_t count = 2 * kShard;
  const Sum sum = sum_of(2, count, DType::fp32, {.wire_dtype = DType::bf16}, scattered);
  EXPECT_EQ(sum.message_bytes, count * 2);
  for (std::size_t i = 0; i < count; ++i) {
    const float parts[] = {to_fp32(to_bf16(static_cast<float>(scattered(0, i)))),
                           to_fp32(to_bf16(static_cast<float>(scattered(1, i))))};
    ASSERT_EQ(sum.elements[i], to_fp32(to_bf16(parts[0] + parts[1]))) << i;
  }
}

// 40,000 is in the range of fp16 (65,504), twice that is not.
TEST(WireSum, DividedBeforeItStaysInRange) {
  const auto large = [](int, std::size_t) { return 40'000.0; };
  for (const DType dtype : {DType::fp32, DType::fp16}) {
    const Sum after = sum_of(2, 64, dtype, {.wire_dtype = DType::fp16}, large);
    EXPECT_EQ(after.elements[7], std::numeric_limits<double>::infinity());
    const Sum before = sum_of(2, 64, dtype, {.wire_dtype = DType::fp16, .divisor = 2}, large);
    EXPECT_EQ(before.elements[7], 40'000.0);
  }
}

TEST(WireSum, IsRoundedOnceByTheDivision) {
  const Sum sum = sum_of(2, 64, DType::fp32, {.wire_dtype = DType::bf16, .divisor = 3}, scattered);
  for (std::size_t i = 0; i < 64; ++i) {
    const float parts[] = {to_fp32(to_bf16(static_cast<float>(scattered(0, i)) / 3)),
                           to_fp32(to_bf16(static_cast<float>(scattered(1, i)) / 3))};
    EXPECT_EQ(sum.elements[i], to_fp32(to_bf16(parts[0] + parts[1])));
  }
}

TEST(CallLog, HasARowForEachOperationAndSize) {
  auto world = make_thread_communicators(2);
  CallLog log({.ranks = 2});
  world.front()->observe(log.observer());
  on_threads(world, [](Communicator& rank) {
    for (const std::size_t size : {64, 64, 128}) {
      Bytes full(size);
      rank.all_gather(full, "the weights of unit h.1");
    }
    rank.barrier("the end");
  });
  const std::vector<LoggedCalls> calls = log.calls();
  ASSERT_EQ(calls.size(), 3U);
  EXPECT_EQ(calls[0].operation, Operation::all_gather);
  EXPECT_EQ(calls[0].message_bytes, 64U);
  EXPECT_EQ(calls[0].calls, 2U);
  EXPECT_GT(calls[0].mean_seconds(), 0);
  EXPECT_EQ(calls[0].label, "");
  EXPECT_EQ(calls[1].message_bytes, 128U);
  EXPECT_EQ(calls[2].operation, Operation::barrier);
}

TEST(CallLog, TellsPurposesApartAndLeavesOutOtherOperations) {
  auto world = make_thread_communicators(2);
  std::mutex mutex;
  std::vector<std::string> lines;
  CallLog log({.ranks = 2,
               .operations = {Operation::all_gather},
               .by_label = true,
               .print = [&](const std::string& line) {
                 const std::lock_guard lock(mutex);
                 lines.push_back(line);
               }});
  world.front()->observe(log.observer());
  on_threads(world, [](Communicator& rank) {
    for (const char* label : {"a", "b"}) {
      Bytes full(64);
      rank.all_gather(full, label);
    }
    rank.barrier("the end");
  });
  ASSERT_EQ(log.calls().size(), 2U);
  EXPECT_EQ(log.calls()[1].label, "b");
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_THAT(lines[0], HasSubstr("comm op: all_gather of a | time (ms): "));
  EXPECT_THAT(lines[0], HasSubstr(" | msg size: 64 B | algbw (Gbps): "));
}

// nccl-tests, PERFORMANCE.md; the algorithm bandwidth of an all-reduce as in DeepSpeed.
TEST(CallBandwidth, FollowsTheOperation) {
  const auto of = [](Operation operation) { return bandwidth_of(operation, 1000, 0.5, 4); };
  EXPECT_EQ(of(Operation::all_gather).algorithm, 2000);
  EXPECT_EQ(of(Operation::all_gather).bus, 1500);
  EXPECT_EQ(of(Operation::reduce_scatter).bus, 1500);
  EXPECT_EQ(of(Operation::all_reduce).algorithm, 4000);
  EXPECT_EQ(of(Operation::all_reduce).bus, 3000);
  EXPECT_EQ(of(Operation::broadcast).bus, 2000);
  EXPECT_EQ(bandwidth_of(Operation::barrier, 0, 0, 4).bus, 0);
}

}  // namespace
}  // namespace sluice::zero::test
