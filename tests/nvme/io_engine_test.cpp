// IoEngine without faults, over every backend, direct and buffered.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <thread>
#include <vector>

#include "faulty_backend.hpp"
#include "nvme_test_support.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "temp_dir.hpp"

namespace sluice::nvme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::uint32_t kBlock = 256 * 1024;

class IoEngineTest : public ::testing::TestWithParam<BackendCase> {
 protected:
  void SetUp() override { SLUICE_SKIP_WITHOUT(GetParam().kind); }

  static std::unique_ptr<IoBackend> backend(unsigned depth = 16) {
    return make_backend(GetParam().kind, depth, 3).backend;
  }
  SwapFile open(const std::string& name, OpenMode mode = OpenMode::create) const {
    return SwapFile(dir_.file(name), mode, GetParam().direct);
  }
  test::TempDir dir_;
};

TEST_P(IoEngineTest, AnySizeAtAnyOffsetAndAddressIsWrittenAndReadBack) {
  const SwapFile file = open("f");
  IoEngine engine(backend(), {kBlock, 8});
  const std::array<std::size_t, 11> sizes{0,    1,        511,  512,      4095,           4096,
                                          4097, kMiB - 1, kMiB, kMiB + 1, 3 * kBlock + 77};
  std::vector<std::byte> model;
  std::uint64_t seed = 1;
  for (const std::uint64_t offset : {0U, 1U, 512U, 4097U}) {
    for (const std::size_t shift : {0U, 3U}) {
      for (const std::size_t size : sizes) {
        SCOPED_TRACE("offset " + std::to_string(offset) + " size " + std::to_string(size) +
                     " address + " + std::to_string(shift));
        TestBuffer out(size, shift);
        fill_random(out.bytes(), ++seed);
        engine.begin_write(file, offset, out.bytes()).finish();
        if (size > 0 && model.size() < offset + size) model.resize(offset + size);
        std::copy(out.bytes().begin(), out.bytes().end(),
                  model.begin() + static_cast<std::ptrdiff_t>(offset));
        ASSERT_EQ(file.size_bytes(), model.size());

        TestBuffer in(size + 2, shift);
        in.bytes().front() = in.bytes().back() = std::byte{0x5A};
        engine.begin_read(file, offset, in.bytes().subspan(1, size)).finish();
        ASSERT_TRUE(same_bytes(in.bytes().subspan(1, size), out.bytes()));
        ASSERT_EQ(in.bytes().front(), std::byte{0x5A});
        ASSERT_EQ(in.bytes().back(), std::byte{0x5A});
      }
    }
  }
  EXPECT_TRUE(same_bytes(read_whole_file(file.path()), model));
}

TEST_P(IoEngineTest, BytesAroundAWriteAreKept) {
  const auto before = random_bytes(5 * 4096 + 100, 1);
  write_whole_file(dir_.file("f"), before);
  const SwapFile file = open("f");
  IoEngine engine(backend(), {kBlock, 8});
  struct Range {
    std::size_t offset, size;
  };
  for (const Range range : {Range{100, 50}, Range{4000, 200}, Range{1, 3 * 4096},
                            Range{5 * 4096 + 10, 20}, Range{5 * 4096 + 90, 100}}) {
    auto model = read_whole_file(file.path());
    model.resize(std::max(model.size(), range.offset + range.size));
    const auto bytes = random_bytes(range.size, range.offset);
    std::copy(bytes.begin(), bytes.end(),
              model.begin() + static_cast<std::ptrdiff_t>(range.offset));
    engine.begin_write(file, range.offset, bytes).finish();
    EXPECT_TRUE(same_bytes(read_whole_file(file.path()), model)) << range.offset;
  }
}

TEST_P(IoEngineTest, AWriteFarBeyondTheEndLeavesZerosBetween) {
  const SwapFile file = open("f");
  IoEngine engine(backend(), {kBlock, 8});
  const auto bytes = random_bytes(1000, 2);
  engine.begin_write(file, 100'001, bytes).finish();
  std::vector<std::byte> model(101'001);
  std::copy(bytes.begin(), bytes.end(), model.begin() + 100'001);
  EXPECT_TRUE(same_bytes(read_whole_file(file.path()), model));
}

TEST_P(IoEngineTest, ExtendingWritesInFlightTogetherEndAtTheLongest) {
  IoEngine engine(backend(), {4096, 16});
  for (int round = 0; round < 8; ++round) {
    const SwapFile file = open("f" + std::to_string(round));
    std::vector<std::byte> model(80'001);
    std::vector<std::vector<std::byte>> parts;
    std::vector<Ticket> tickets;
    for (const std::size_t offset : {0U, 20'480U, 40'960U, 61'440U}) {
      parts.push_back(random_bytes(18'561, offset + static_cast<std::size_t>(round)));
      std::copy(parts.back().begin(), parts.back().end(),
                model.begin() + static_cast<std::ptrdiff_t>(offset));
      tickets.push_back(engine.begin_write(file, offset, parts.back()));
    }
    finish_all(tickets);
    ASSERT_TRUE(same_bytes(read_whole_file(file.path()), model)) << "round " << round;
  }
}

TEST_P(IoEngineTest, ReadingBeyondTheEndSaysHowMuchThereWas) {
  write_whole_file(dir_.file("f"), random_bytes(5000, 3));
  const SwapFile file = open("f", OpenMode::read_only);
  IoEngine engine(backend(), {4096, 8});
  TestBuffer in(3 * kMiB);
  const auto read = [&](std::uint64_t offset, std::size_t size) {
    return message_of<IoError>(
        [&] { engine.begin_read(file, offset, in.bytes().first(size)).finish(); });
  };
  EXPECT_THAT(read(0, 3 * kMiB),
              AllOf(HasSubstr(file.path() + ": read of 3145728 bytes at offset 0"),
                    HasSubstr("end of file after 5000 bytes"), HasSubstr("Input/output error")));
  EXPECT_THAT(read(4096, 905), HasSubstr("end of file after 904 bytes"));
  EXPECT_THAT(read(4999, 2), HasSubstr("end of file after 1 bytes"));
  EXPECT_THAT(read(5000, 1), HasSubstr("end of file after 0 bytes"));
  EXPECT_THAT(read(kMiB, 10), HasSubstr("end of file after 0 bytes"));
  engine.begin_read(file, 4096, in.bytes().first(904)).finish();
  EXPECT_EQ(engine.counters().read_bytes, 904U);
}

TEST_P(IoEngineTest, AnErrorCarriesPathOffsetAndSize) {
  write_whole_file(dir_.file("f"), random_bytes(100, 4));
  const SwapFile file = open("f", OpenMode::read_only);
  IoEngine engine(backend(), {kBlock, 8});
  TestBuffer out(8192);
  try {
    engine.begin_write(file, 4096, out.bytes()).finish();
    FAIL() << "the file is open for reading only";
  } catch (const IoError& error) {
    EXPECT_EQ(error.code().value(), EBADF);
    EXPECT_EQ(error.path(), file.path());
    EXPECT_EQ(error.offset_bytes(), 4096U);
    EXPECT_EQ(error.size_bytes(), 8192U);
  }
}

TEST_P(IoEngineTest, ManyThreadsMoveManyTransfersAtOnce) {
  const SwapFile file = open("f");
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kPerThread = 24;
  constexpr std::size_t kSize = 40'000;
  constexpr std::size_t kStride = 49'152;  // blocks are not shared
  IoEngine engine(backend(), {16 * 1024, 8});
  std::vector<std::thread> threads;
  std::array<bool, kThreads> good{};
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::vector<std::byte>> out, in(kPerThread, std::vector<std::byte>(kSize));
      std::vector<Ticket> tickets;
      for (std::size_t i = 0; i < kPerThread; ++i) {
        out.push_back(random_bytes(kSize, t * 1000 + i));
        tickets.push_back(engine.begin_write(file, (i * kThreads + t) * kStride, out[i]));
      }
      tickets.clear();  // waits; an error shows in the bytes read back
      for (std::size_t i = 0; i < kPerThread; ++i) {
        tickets.push_back(engine.begin_read(file, (i * kThreads + t) * kStride, in[i]));
      }
      tickets.clear();
      good[t] = in == out;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(good, ::testing::Each(true));
  const IoCounters counters = engine.counters();
  EXPECT_EQ(counters.written_bytes, kThreads * kPerThread * kSize);
  EXPECT_EQ(counters.read_bytes, kThreads * kPerThread * kSize);
  EXPECT_GT(counters.read_busy_seconds, 0);
  EXPECT_GT(counters.write_busy_seconds, 0);
}

TEST_P(IoEngineTest, DestructionWaitsForWhatWasBegun) {
  const SwapFile file = open("f");
  const auto bytes = random_bytes(2 * kMiB, 5);
  Ticket ticket;
  {
    IoEngine engine(backend(), {4096, 4});
    ticket = engine.begin_write(file, 0, bytes);
  }
  EXPECT_TRUE(ticket.done());
  ticket.finish();
  EXPECT_TRUE(same_bytes(read_whole_file(file.path()), bytes));
}

TEST_P(IoEngineTest, AlignedTransfersAreNotCopiedAndTakeOneRequestPerBlock) {
  const SwapFile file = open("f");
  IoEngine engine(backend(), {kBlock, 8});
  TestBuffer buffer(4 * kBlock);
  fill_random(buffer.bytes(), 6);
  engine.begin_write(file, 4096, buffer.bytes()).finish();
  engine.begin_read(file, 4096, buffer.bytes()).finish();
  const IoCounters counters = engine.counters();
  EXPECT_EQ(counters.bounce_bytes, 0U);
  EXPECT_EQ(counters.requests, 8U);
  EXPECT_EQ(counters.short_transfers, 0U);
  EXPECT_EQ(counters.retries, 0U);
  EXPECT_EQ(counters.written_bytes, 4 * kBlock);
  EXPECT_EQ(counters.read_bytes, 4 * kBlock);
}

TEST_P(IoEngineTest, CopiesAreCountedWhereAlignmentForcesThem) {
  const SwapFile file = open("f");
  IoEngine engine(backend(), {kBlock, 8});
  TestBuffer buffer(2 * kBlock, 1);
  fill_random(buffer.bytes(), 7);
  engine.begin_write(file, 0, buffer.bytes()).finish();
  EXPECT_EQ(engine.counters().bounce_bytes, file.direct() ? 2 * kBlock : 0);
}

TEST_P(IoEngineTest, KeepsAsManyBlocksInFlightAsItsDepthAndNoMore) {
  write_whole_file(dir_.file("f"), random_bytes(20 * 4096, 8));
  const SwapFile file = open("f", OpenMode::read_only);
  auto counting = std::make_unique<FaultyBackend>(
      backend(8), FaultyOptions{[](const IoRequest&, std::uint64_t) { return Fault::held(); }});
  FaultyBackend& seen = *counting;
  IoEngine engine(std::move(counting), {4096, 3});
  TestBuffer in(20 * 4096);
  Ticket ticket = engine.begin_read(file, 0, in.bytes());
  seen.wait_until_idle_with(3);
  EXPECT_EQ(seen.in_flight(), 3U);
  EXPECT_FALSE(ticket.done());
  seen.release_held();
  ticket.finish();
  EXPECT_EQ(seen.max_in_flight(), 3U);
  EXPECT_TRUE(same_bytes(in.bytes(), random_bytes(20 * 4096, 8)));
}

TEST_P(IoEngineTest, DepthIsTheSmallerOfTheOptionAndTheBackend) {
  EXPECT_EQ(IoEngine(backend(4), {4096, 32}).options().depth, 4U);
  EXPECT_EQ(IoEngine(backend(8), {4096, 2}).options().depth, 2U);
  EXPECT_EQ(IoEngine(backend(8), {4096, 2}).backend_name(), name_of(GetParam().kind));
}

// Begins reads and writes while the first is held, so that they queue. Returns the order in which
// they were submitted at depth 1: 'r' and 'w'.
std::string order_of(std::unique_ptr<IoBackend> backend, const SwapFile& file,
                     const std::string& begun, unsigned reads_per_write = 3) {
  auto wrapped = std::make_unique<FaultyBackend>(
      std::move(backend), FaultyOptions{[](const IoRequest&, std::uint64_t index) {
        return index == 0 ? Fault::held() : Fault{};
      }});
  FaultyBackend& seen = *wrapped;
  IoEngine engine(std::move(wrapped), {4096, 1, reads_per_write});
  TestBuffer buffer((begun.size() + 1) * 4096);
  std::vector<Ticket> tickets;
  tickets.push_back(engine.begin_write(file, 0, buffer.bytes().first(4096)));
  seen.wait_until_idle_with(1);
  for (std::size_t i = 0; i < begun.size(); ++i) {
    const auto part = buffer.bytes().subspan((i + 1) * 4096, 4096);
    tickets.push_back(begun[i] == 'r' ? engine.begin_read(file, i * 4096, part)
                                      : engine.begin_write(file, i * 4096, part));
  }
  seen.release_held();
  finish_all(tickets);
  std::string order;
  for (const IoRequest& request : seen.history()) order += request.op == IoOp::read ? 'r' : 'w';
  return order.substr(1);
}

TEST_P(IoEngineTest, ReadsOvertakeWritesButDoNotStarveThem) {
  SwapFile file = open("f");
  file.allocate(16 * 4096);
  EXPECT_EQ(order_of(backend(), file, "wwwr"), "rwww");
  EXPECT_EQ(order_of(backend(), file, "wwrrrrrrr"), "rrrwrrrwr");
  EXPECT_EQ(order_of(backend(), file, "wwrrrr", 1), "rwrwrr");
  EXPECT_EQ(order_of(backend(), file, "wwrrrr", 32), "rrrrww");
}

TEST_P(IoEngineTest, AnEmptySpanIsFinishedAtOnce) {
  const SwapFile file = open("f");
  IoEngine engine(backend(), {kBlock, 8});
  Ticket ticket = engine.begin_read(file, 1U << 30U, {});
  EXPECT_TRUE(ticket.done());
  ticket.finish();
  EXPECT_EQ(engine.counters().requests, 0U);
}

TEST_P(IoEngineTest, AForkedChildIsRefused) {
  const SwapFile file = open("f");
  IoEngine engine(backend(), {.block_bytes = kBlock});
  std::vector<std::byte> data(kBlock);
  const auto write = [&] { engine.begin_write(file, 0, data).finish(); };
  const std::string said = run_in_child([&] { return test::message_of(write); });
  EXPECT_THAT(said, HasSubstr("works in the parent process only"));
  write();
}

TEST_P(IoEngineTest, ATransferBeyondTheLargestOffsetIsRefused) {
  const SwapFile file = open("f");
  IoEngine engine(backend(), {kBlock, 8});
  std::array<std::byte, 2> bytes{};
  EXPECT_THROW(engine.begin_write(file, std::numeric_limits<std::int64_t>::max() - 1, bytes),
               InvalidArgument);
  EXPECT_THROW(engine.begin_read(file, std::numeric_limits<std::uint64_t>::max(), bytes),
               InvalidArgument);
}

TEST_P(IoEngineTest, AListMovesItsRangesWithOneTicket) {
  const SwapFile file = open("f");
  IoEngine engine(backend(), {kBlock, 8});
  const std::array<std::size_t, 6> sizes{1, 4096, 0, 513, kBlock + 1, 3 * kBlock};
  std::vector<std::vector<std::byte>> out;
  std::vector<std::vector<std::byte>> in;
  std::vector<WriteRange> writes;
  std::vector<ReadRange> reads;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    out.push_back(random_bytes(sizes[i], i));
    in.emplace_back(sizes[i]);
    writes.push_back({i * kMiB, out[i]});
    reads.push_back({i * kMiB, in[i]});
  }
  engine.begin_writes(file, writes).finish();
  engine.begin_reads(file, reads).finish();
  EXPECT_EQ(in, out);
  EXPECT_TRUE(engine.begin_reads(file, {}).done());
  reads.back().offset_bytes = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t requests = engine.counters().requests;
  EXPECT_THROW(engine.begin_reads(file, reads), InvalidArgument);
  EXPECT_EQ(engine.counters().requests, requests);
}

// A write of a part of a block writes the whole block, so the other part would be the old one.
TEST_P(IoEngineTest, AListOfWritesThatShareABlockIsRefused) {
  const SwapFile file = open("f");
  IoEngine engine(backend(), {kBlock, 8});
  const std::vector<std::byte> bytes = random_bytes(2 * kBlock, 1);
  const std::span<const std::byte> all(bytes);
  const WriteRange first{0, all.first(1000)};
  const WriteRange empty{500, {}};
  const WriteRange second{1000, all.subspan(1000, kBlock)};
  const std::vector<std::vector<WriteRange>> lists = {{first, empty, second}, {second, first}};
  for (const std::vector<WriteRange>& list : lists) {
    if (file.offset_alignment() > 1) {
      EXPECT_THAT(
          message_of<InvalidArgument>([&] { engine.begin_writes(file, list); }),
          HasSubstr("a write of 1000 bytes at offset 0 and one at offset 1000 share a block"));
      EXPECT_EQ(engine.counters().requests, 0U);
      continue;
    }
    engine.begin_writes(file, list).finish();
    std::vector<std::byte> read(1000 + kBlock);
    engine.begin_read(file, 0, read).finish();
    EXPECT_TRUE(std::ranges::equal(read, all.first(read.size())));
  }
  const std::vector<WriteRange> apart = {
      {kBlock, all.first(kBlock)}, {0, all.first(kBlock)}, {2 * kBlock + 7, all.first(9)}};
  engine.begin_writes(file, apart).finish();
}

INSTANTIATE_TEST_SUITE_P(Backends, IoEngineTest, ::testing::ValuesIn(backend_cases()),
                         [](const auto& param_info) { return name_of(param_info.param); });

TEST(IoEngineOptions, OutOfRangeIsRefused) {
  const auto with = [](std::uint32_t block_bytes, unsigned depth, unsigned reads_per_write = 3) {
    IoEngine engine(make_backend(BackendKind::threads, 4, 1).backend,
                    {block_bytes, depth, reads_per_write});
  };
  EXPECT_THROW(with(0, 4), InvalidArgument);
  EXPECT_THROW(with(4096 + 512, 4), InvalidArgument);
  EXPECT_THROW(with(1U << 31U, 4), InvalidArgument);
  EXPECT_THROW(with(4096, 0), InvalidArgument);
  EXPECT_THROW(with(4096, 4097), InvalidArgument);
  EXPECT_THROW(with(4096, 4, 0), InvalidArgument);
  EXPECT_THROW(with(4096, 4, 1025), InvalidArgument);

  class NoDepth final : public IoBackend {
   public:
    std::string_view name() const override { return "no depth"; }
    unsigned depth() const override { return 0; }
    std::size_t submit(std::span<const IoRequest> /*requests*/) override { return 0; }
    std::size_t reap(std::span<IoCompletion> /*completions*/) override { return 0; }
    void wait() override {}
    void wake() override {}
  };
  EXPECT_THROW(IoEngine(std::make_unique<NoDepth>(), {4096, 4}), InvalidArgument);
  EXPECT_THROW(IoEngine(nullptr, {}), InvalidArgument);
}

}  // namespace
}  // namespace sluice::nvme
