// The file on which throughput is measured, and the loads that measure it.

#include "sluice/nvme/load.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "in_child.hpp"
#include "nvme_test_support.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/nvme/bench_file.hpp"
#include "temp_dir.hpp"

namespace sluice::nvme {
namespace {

IoEngine engine_of(BackendKind kind, std::uint32_t block_bytes = 64 * 1024, unsigned depth = 4) {
  return {make_backend(kind, depth, 4).backend, {block_bytes, depth}};
}

SwapFile open_file(const test::TempDir& dir, std::uint64_t size_bytes, IoEngine& engine) {
  return open_bench_file(dir.path(), size_bytes, engine, DirectIo::automatic, {});
}

TEST(BenchPattern, IsTheSameFromEveryOffsetAndDiffersBetweenPlaces) {
  const BenchPattern pattern(kMiB);
  const auto whole = pattern.at(0, kMiB);
  EXPECT_TRUE(same_bytes(pattern.at(4096, 1000), whole.subspan(4096, 1000)));
  EXPECT_TRUE(same_bytes(pattern.at(BenchPattern::kPeriodBytes, 5000), whole.first(5000)));
  EXPECT_FALSE(same_bytes(pattern.at(kMiB, 4096), whole.first(4096)));
  EXPECT_THROW(pattern.at(0, 3 * kMiB), InvalidArgument);
}

TEST(BenchPattern, HasNoRangeThatIsLongerThanItsMemory) {
  const BenchPattern pattern(10);
  for (const std::size_t size_bytes : {pattern.memory().size() + 1, SIZE_MAX})
    EXPECT_THROW(static_cast<void>(pattern.at(5, size_bytes)), InvalidArgument) << size_bytes;
}

TEST(BenchPattern, TakesConsecutiveRangesFromDifferentMemoryAsFarAsItIsSpread) {
  const BenchPattern pattern(kMiB, 6 * kMiB);
  for (std::uint64_t at = kMiB; at < 6 * kMiB; at += kMiB) {
    const auto last = pattern.at(at - kMiB, kMiB);
    EXPECT_EQ(pattern.at(at, kMiB).data(), last.data() + last.size());
  }
  const BenchPattern narrow(kMiB);
  for (const std::uint64_t at : {0 * kMiB, 5 * kMiB, 50 * kMiB}) {
    EXPECT_TRUE(same_bytes(pattern.at(at, kMiB), narrow.at(at, kMiB)));
  }
}

TEST(BenchFile, IsFilledOnceAndTakenAgainWhenItIsWhole) {
  const test::TempDir dir;
  IoEngine engine = engine_of(BackendKind::automatic);
  std::uint64_t filled = 0;
  const auto progress = [&](std::uint64_t done, std::uint64_t) { filled = done; };
  {
    const SwapFile file =
        open_bench_file(dir.path(), 20 * kMiB, engine, DirectIo::automatic, progress);
    EXPECT_EQ(filled, 20 * kMiB);
    EXPECT_EQ(file.size_bytes(), 20 * kMiB);
    EXPECT_TRUE(holds_pattern(file, 20 * kMiB, engine, 5120));
  }
  filled = 0;
  open_bench_file(dir.path(), 10 * kMiB, engine, DirectIo::automatic, progress);
  EXPECT_EQ(filled, 0U) << "a larger one was there";
  // Blocks that were only allocated read as zeros instead of the pattern.
  std::filesystem::resize_file(dir.file("bench.sluice"), 8 * kMiB);
  std::filesystem::resize_file(dir.file("bench.sluice"), 20 * kMiB);
  const SwapFile file =
      open_bench_file(dir.path(), 20 * kMiB, engine, DirectIo::automatic, progress);
  EXPECT_EQ(filled, 20 * kMiB);
  EXPECT_TRUE(holds_pattern(file, 20 * kMiB, engine, 5120));
}

TEST(BenchFile, IsRemovedWhereFillingItEndsEarly) {
  struct Stop {};
  const test::TempDir dir;
  IoEngine engine = engine_of(BackendKind::automatic);
  const auto fill = [&](OlderFile after_failure = OlderFile::stays) {
    open_bench_file(
        dir.path(), 64 * kMiB, engine, DirectIo::automatic,
        [](std::uint64_t, std::uint64_t) { throw Stop(); }, after_failure);
  };
  EXPECT_THROW(fill(), Stop);
  EXPECT_FALSE(std::filesystem::exists(dir.file("bench.sluice")));
  open_file(dir, kMiB, engine);
  EXPECT_THROW(fill(), Stop);
  EXPECT_TRUE(std::filesystem::exists(dir.file("bench.sluice"))) << "it was there before";
  EXPECT_THROW(fill(OlderFile::goes), Stop);
  EXPECT_FALSE(std::filesystem::exists(dir.file("bench.sluice")));
  const SwapFile held = open_file(dir, kMiB, engine);
  EXPECT_TRUE(bench_file_in_use(held.path()));
  EXPECT_THROW(fill(OlderFile::goes), IoError);
  EXPECT_TRUE(std::filesystem::exists(held.path())) << "another program measures";
}

// Keeps every core busy. Processes: a child of a process with threads that begin could wait for
// their locks for ever.
class BusyCores {
 public:
  BusyCores() {
    for (unsigned i = 0; i < 2 * std::thread::hardware_concurrency(); ++i) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (volatile bool goes_on = true; goes_on;) continue;
        ::_exit(0);
      }
      if (child > 0) children_.push_back(child);
    }
  }
  ~BusyCores() {
    for (const pid_t child : children_) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
  }
  BusyCores(const BusyCores&) = delete;
  BusyCores& operator=(const BusyCores&) = delete;

 private:
  std::vector<pid_t> children_;
};

// The kernel takes a ring apart after its process has ended, and a ring holds its files: for longer
// where the cores are busy.
TEST(BenchFile, IsTakenFromAProcessThatWasKilledInTheMiddleOfItsReads) {
  const test::TempDir dir;
  const auto open = [&dir] {
    IoEngine engine = engine_of(BackendKind::automatic);
    open_file(dir, 4 * kMiB, engine);
  };
  open();
  const BusyCores busy;
  for (int i = 0; i < 5; ++i) {
    const std::string said = test::run_in_child([&]() -> std::string {
      IoEngine own = engine_of(BackendKind::automatic);
      const SwapFile file = open_file(dir, 4 * kMiB, own);
      std::vector<std::byte> memory(4 * kMiB);
      const Ticket read = own.begin_read(file, 0, memory);
      ::raise(SIGKILL);
      return "lived on";
    });
    EXPECT_EQ(said, " (the child died)");
    EXPECT_NO_THROW(open()) << i;
  }
}

TEST(BenchFile, IsNotMadeOverAFileThatHasAnotherName) {
  const test::TempDir dir;
  IoEngine engine = engine_of(BackendKind::automatic);
  std::ofstream(dir.file("mine")) << "of somebody";
  std::filesystem::create_hard_link(dir.file("mine"), dir.file("bench.sluice"));
  EXPECT_THROW(open_file(dir, kMiB, engine), IoError);
  EXPECT_EQ(std::filesystem::file_size(dir.file("mine")), 11U);
}

TEST(LoadMemory, GoesWithTheQueueAndNotWithTheFile) {
  LoadOptions options;
  options.size_bytes = 64 * kMiB;
  EXPECT_LE(load_memory_bytes(options, {256U << 10U, 32}), 12 * kMiB);
  EXPECT_GE(load_memory_bytes(options, {256U << 10U, 32}), 8 * kMiB);
  EXPECT_GE(load_memory_bytes(options, {64U << 20U, 4096}), kMiB * 4096 * 64);
  options.pattern = LoadPattern::swap;
  options.access = LoadAccess::random;
  EXPECT_THROW(load_memory_bytes(options, {}), InvalidArgument);
}

TEST(BenchFile, NeedsADirectoryAndRoom) {
  const test::TempDir dir;
  IoEngine engine = engine_of(BackendKind::automatic);
  EXPECT_THROW(open_bench_file(dir.file("absent"), kMiB, engine, DirectIo::automatic, {}), IoError);
  std::ofstream(dir.file("file")) << "x";
  EXPECT_THROW(open_bench_file(dir.file("file"), kMiB, engine, DirectIo::automatic, {}),
               InvalidArgument);
  EXPECT_THROW(
      open_bench_file(dir.path(), std::uint64_t{1} << 50U, engine, DirectIo::automatic, {}),
      IoError);
  EXPECT_FALSE(std::filesystem::exists(dir.file("bench.sluice")));
}

class LoadTest : public ::testing::TestWithParam<BackendKind> {
 protected:
  void SetUp() override { SLUICE_SKIP_WITHOUT(GetParam()); }
  test::TempDir dir_;
};

TEST_P(LoadTest, EveryPatternMovesBytesAndLeavesTheFileAsItWas) {
  constexpr std::uint64_t kSize = 8 * kMiB;
  IoEngine engine = engine_of(GetParam());
  const SwapFile file = open_file(dir_, kSize, engine);
  const auto check = [&](LoadPattern pattern, LoadAccess access,
                         std::vector<std::uint64_t> tensors = {}) {
    const std::string what = std::string(name_of(pattern)) + " " + std::string(name_of(access));
    LoadOptions options;
    options.pattern = pattern;
    options.access = access;
    options.size_bytes = kSize;
    options.tensor_bytes = std::move(tensors);
    Load load(engine, file, options);
    LoadResult result = load.run(0.05);
    result.add(load.run(0.02));
    EXPECT_EQ(result.read_bytes > 0, pattern != LoadPattern::write) << what;
    EXPECT_EQ(result.written_bytes > 0, pattern != LoadPattern::read) << what;
    EXPECT_EQ(result.latency.reads.count() > 0, pattern != LoadPattern::write) << what;
    EXPECT_EQ(result.bounce_bytes, 0U) << what;
    EXPECT_GE(result.seconds, 0.07) << what;
    EXPECT_GT(result.bytes_per_second(), 0) << what;
    if (pattern == LoadPattern::swap) {
      EXPECT_EQ(result.read_bytes, result.written_bytes);
    }
    EXPECT_TRUE(holds_pattern(file, kSize, engine, 2048)) << what;
  };
  for (const LoadPattern pattern : {LoadPattern::read, LoadPattern::write, LoadPattern::mixed}) {
    check(pattern, LoadAccess::sequential);
    check(pattern, LoadAccess::random);
  }
  check(LoadPattern::swap, LoadAccess::sequential);
  check(LoadPattern::swap, LoadAccess::sequential, {1, 4096, 5000, kMiB, 17, kMiB + 1});
}

TEST_P(LoadTest, SamplesEveryBlockOfTheFileInTurn) {
  IoEngine engine = engine_of(GetParam());
  constexpr std::uint64_t kBlock = 64U << 10U;
  constexpr std::uint64_t kSize = 3 * kMiB + 8192;
  const SwapFile file = open_file(dir_, kSize, engine);
  LoadOptions options;
  options.size_bytes = kSize;
  // One block inside a range of several, and the last block, which is short.
  for (const auto& [begin, size] : {std::pair{kBlock, kBlock}, std::pair{kSize - 8192, kSize}}) {
    Load load(engine, file, options);
    const auto damage = [&, at = begin, count = std::min(size, kSize - begin)] {
      TestBuffer buffer(count);
      engine.begin_read(file, at, buffer.bytes()).finish();
      for (std::byte& byte : buffer.bytes()) byte ^= std::byte{0x40};
      engine.begin_write(file, at, buffer.bytes()).finish();
    };
    damage();
    try {
      load.run(5);
      ADD_FAILURE() << "the damage was not seen";
    } catch (const IoError& error) {
      EXPECT_EQ(error.code().value(), EIO);
      EXPECT_NE(std::string(error.what()).find("bench.sluice"), std::string::npos);
      EXPECT_GE(error.offset_bytes(), begin);
      EXPECT_LT(error.offset_bytes(), begin + size);
    }
    damage();  // restores the bytes
  }
}

TEST_P(LoadTest, StopsWhenAsked) {
  IoEngine engine = engine_of(GetParam());
  const SwapFile file = open_file(dir_, 4 * kMiB, engine);
  LoadOptions options;
  options.size_bytes = 4 * kMiB;
  Load load(engine, file, options);
  EXPECT_LT(load.run(1000, [] { return true; }).seconds, 100);
}

INSTANTIATE_TEST_SUITE_P(AllBackends, LoadTest, ::testing::ValuesIn(built_backends()),
                         [](const auto& param) { return name_of(param.param); });

TEST(SwapTensorSizes, SpreadFromAByteTo64MiBAndFillTheFile) {
  const std::vector<std::uint64_t> sizes = swap_tensor_sizes(1000, 3 * kGiB);
  ASSERT_EQ(sizes.size(), 1000U);
  EXPECT_EQ(*std::min_element(sizes.begin(), sizes.end()), 1U);
  EXPECT_EQ(*std::max_element(sizes.begin(), sizes.end()), 64 * kMiB);
  std::uint64_t pages = 0;
  for (const std::uint64_t bytes : sizes) pages += align_up(bytes, 4096);
  EXPECT_LE(pages, kGiB);
  EXPECT_GE(pages, kGiB - kGiB / 50);
  for (std::uint64_t below = 1; below < 64 * kMiB; below *= 16) {
    EXPECT_GT(std::count_if(sizes.begin(), sizes.end(),
                            [&](auto bytes) { return bytes >= below && bytes < 16 * below; }),
              5)
        << below;
  }
  EXPECT_EQ(sizes, swap_tensor_sizes(1000, 3 * kGiB));
  EXPECT_THROW(swap_tensor_sizes(1000, kMiB), InvalidArgument);  // each takes a page
  EXPECT_THROW(swap_tensor_sizes(3, 8 * kGiB), InvalidArgument);
  const std::vector<std::uint64_t> small = swap_tensor_sizes(100, 24 * kMiB);
  EXPECT_EQ(*std::max_element(small.begin(), small.end()), kMiB);
  EXPECT_THROW(swap_tensor_sizes(0, kGiB), InvalidArgument);
  EXPECT_THROW(swap_tensor_sizes(SIZE_MAX, kGiB), InvalidArgument);
}

TEST(LoadOptions, ThatDoNotFitAreRefused) {
  const test::TempDir dir;
  IoEngine engine = engine_of(BackendKind::automatic);
  const SwapFile file = open_file(dir, 4 * kMiB, engine);
  LoadOptions options;
  options.size_bytes = 4096;
  EXPECT_THROW(Load(engine, file, options), InvalidArgument) << "less than a block";
  for (const LoadPattern pattern : {LoadPattern::read, LoadPattern::write}) {
    options.pattern = pattern;
    options.size_bytes = 5 * kMiB;
    EXPECT_EQ(message_of<InvalidArgument>([&] { Load(engine, file, options); }),
              file.path() +
                  ": a load over 5.00 MiB of a file of 4.00 MiB; lower its size, or "
                  "allocate the file first");
  }
  options.size_bytes = 3 * kMiB;
  options.pattern = LoadPattern::swap;
  options.tensor_bytes = {kMiB, 1};
  EXPECT_THROW(Load(engine, file, options), InvalidArgument) << "three states of 1 MiB and a page";
  options.tensor_bytes = {};
  options.access = LoadAccess::random;
  EXPECT_THROW(Load(engine, file, options), InvalidArgument) << "swap is sequential";
  EXPECT_EQ(parse_load_pattern("swap"), LoadPattern::swap);
  const std::string said = message_of<InvalidArgument>([] { parse_load_pattern("reed"); });
  EXPECT_NE(said.find("did you mean \"read\"?"), std::string::npos) << said;
}

}  // namespace
}  // namespace sluice::nvme
