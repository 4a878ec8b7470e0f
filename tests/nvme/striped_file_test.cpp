// Striping: the places of bytes, transfers over several queues, errors that name the drive.

#include "sluice/nvme/striped_file.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "faulty_backend.hpp"
#include "nvme_test_support.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/nvme/drive_rates.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "temp_dir.hpp"

namespace sluice::nvme {
namespace {

using sluice::test::TempDir;

std::vector<StripeLayout::Piece> pieces_of(const StripeLayout& layout, std::uint64_t offset,
                                           std::uint64_t size) {
  std::vector<StripeLayout::Piece> pieces;
  while (size > 0) {
    pieces.push_back(layout.first_piece(offset, size));
    offset += pieces.back().size_bytes;
    size -= pieces.back().size_bytes;
  }
  return pieces;
}

TEST(StripeLayout, OnePartIsTheFileItself) {
  const StripeLayout layout;
  const auto pieces = pieces_of(layout, 123, 10'000'000);
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_EQ(pieces[0].offset_bytes, 123U);
  EXPECT_EQ(pieces[0].size_bytes, 10'000'000U);
  EXPECT_EQ(layout.part_bytes(0, 77), 77U);
  EXPECT_EQ(layout.covered_bytes(0, 77), 77U);
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(layout.covered_bytes(0, kMost), kMost);
  EXPECT_EQ(StripeLayout({3, 1}, 4096).covered_bytes(0, kMost), kMost);
  EXPECT_GT(StripeLayout({3, 1}, 4096).covered_bytes(0, kMost / 4 * 3 - 16 * kMiB), kMost - kGiB);
}

// Every byte has one place, parts have no holes, and the shares are the weights'.
TEST(StripeLayout, PlacesEveryChunkOnceAndByWeight) {
  constexpr std::uint64_t kChunk = 4096;
  for (const std::vector<unsigned>& weights :
       std::vector<std::vector<unsigned>>{{1, 1}, {2, 1}, {3, 1, 2}, {1, 7}, {5, 3, 4, 4}}) {
    const StripeLayout layout(weights, kChunk);
    const unsigned turn = std::accumulate(weights.begin(), weights.end(), 0U);
    for (std::uint64_t chunks = 0; chunks <= 3 * turn + 1; ++chunks) {
      const std::uint64_t size = chunks * kChunk + (chunks % 3) * 100;
      std::vector<std::map<std::uint64_t, std::uint64_t>> found(weights.size());
      for (const auto& piece : pieces_of(layout, 0, size)) {
        EXPECT_TRUE(found[piece.part].emplace(piece.offset_bytes, piece.size_bytes).second);
      }
      for (std::size_t part = 0; part < weights.size(); ++part) {
        std::uint64_t end = 0;
        for (const auto& [offset, bytes] : found[part]) {
          EXPECT_EQ(offset, end);
          end = offset + bytes;
        }
        EXPECT_EQ(end, layout.part_bytes(part, size));
        EXPECT_GE(layout.covered_bytes(part, end), size);
        if (end > 0) {
          EXPECT_LT(layout.covered_bytes(part, end - 1), size);
        }
        if (chunks == std::uint64_t{2} * turn) {
          EXPECT_EQ(end / kChunk, 2 * weights[part]);
        }
      }
    }
  }
}

TEST(StripeLayout, RefusesWhatItCannotBe) {
  EXPECT_THROW(StripeLayout({}, 4096), InvalidArgument);
  EXPECT_THROW(StripeLayout({1, 0}, 4096), InvalidArgument);
  EXPECT_THROW(StripeLayout({65}, 4096), InvalidArgument);
  EXPECT_THROW(StripeLayout({1, 1}, 1000), InvalidArgument);
  EXPECT_THROW(StripeLayout({1, 1}, 0), InvalidArgument);
}

TEST(StripeLayout, HasNoPartsButItsOwn) {
  for (const StripeLayout& layout : {StripeLayout(), StripeLayout({1, 1}, 4096)}) {
    EXPECT_THROW(layout.part_bytes(layout.parts(), 100'000), InvalidArgument);
    EXPECT_THROW(layout.covered_bytes(layout.parts(), 100'000), InvalidArgument);
  }
  StripeLayout layout({1, 1}, 4096);
  const StripeLayout moved = std::move(layout);
  // NOLINTNEXTLINE(bugprone-use-after-move): the subject
  EXPECT_THROW(layout.first_piece(0, 10), InvalidArgument);
  EXPECT_EQ(moved.first_piece(4096, 10).part, 1U);
}

TEST(StripeWeights, AreInProportionToTheRates) {
  using Weights = std::vector<unsigned>;
  const auto weights = [](std::vector<double> rates) { return stripe_weights(rates); };
  EXPECT_EQ(weights({3e9}), (Weights{1}));
  EXPECT_EQ(weights({3.0e9, 2.9e9}), (Weights{1, 1}));
  EXPECT_EQ(weights({6e9, 3e9}), (Weights{2, 1}));
  EXPECT_EQ(weights({1e9, 3e9, 2e9}), (Weights{1, 3, 2}));
  EXPECT_THROW(weights({1e9, 0}), InvalidArgument);
  EXPECT_THROW(weights({}), InvalidArgument);
  // For all rates, no drive gets much more than its share.
  std::mt19937 random(7);
  std::uniform_real_distribution<double> rate(1e9, 7e9);
  for (int i = 0; i < 200; ++i) {
    const std::vector<double> rates{rate(random), rate(random), rate(random)};
    const Weights found = stripe_weights(rates);
    const double sum = rates[0] + rates[1] + rates[2];
    const double all = found[0] + found[1] + found[2];
    for (int d = 0; d < 3; ++d) EXPECT_LT(found[d] / all, 1.12 * rates[d] / sum);
  }
}

class StripedFileTest : public ::testing::TestWithParam<BackendKind> {
 protected:
  static constexpr std::uint64_t kChunk = 8192;
  static constexpr std::uint64_t kSize = 64 * kChunk;

  void SetUp() override {
    std::string why;
    if (!available(GetParam(), why)) GTEST_SKIP() << why;
    std::vector<std::unique_ptr<IoBackend>> backends;
    backends.reserve(3);
    for (int i = 0; i < 3; ++i) backends.push_back(make_backend(GetParam(), 8, 2).backend);
    engine_ = std::make_unique<IoEngine>(std::move(backends), IoEngineOptions{4096, 8});
    file_ = std::make_unique<StripedFile>(parts(), StripeLayout({2, 1, 1}, kChunk));
    file_->allocate(kSize);
  }
  std::vector<SwapFile> parts() const {
    std::vector<SwapFile> files;
    for (std::size_t i = 0; i < 3; ++i)
      files.emplace_back(dir_.file("part" + std::to_string(i)), OpenMode::create,
                         DirectIo::automatic, i);
    return files;
  }

  TempDir dir_;
  std::unique_ptr<StripedFile> file_;
  std::unique_ptr<IoEngine> engine_;
};

// Against a copy in memory; any offset, any size.
TEST_P(StripedFileTest, HoldsWhatWasWritten) {
  std::vector<std::byte> model(kSize, std::byte{0});
  std::mt19937_64 random(3);
  for (int i = 0; i < 300; ++i) {
    const std::uint64_t offset = random() % kSize;
    const std::uint64_t size = 1 + random() % std::min<std::uint64_t>(kSize - offset, 6 * kChunk);
    if (i % 2 == 0) {
      std::vector<std::byte> bytes(size);
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
      engine_->begin_write(*file_, offset, bytes).finish();
      std::copy(bytes.begin(), bytes.end(), model.begin() + static_cast<std::ptrdiff_t>(offset));
    } else {
      std::vector<std::byte> bytes(size, std::byte{0xA5});
      engine_->begin_read(*file_, offset, bytes).finish();
      ASSERT_TRUE(same_bytes(bytes, std::span(model).subspan(offset, size))) << offset;
    }
  }
  EXPECT_EQ(file_->size_bytes(), kSize);
  EXPECT_EQ(engine_->drives(), 3U);
  IoCounters sum;
  for (std::size_t drive = 0; drive < 3; ++drive) {
    EXPECT_GT(engine_->drive_counters(drive).read_bytes, 0U);
    sum.add(engine_->drive_counters(drive));
  }
  EXPECT_EQ(sum.read_bytes, engine_->counters().read_bytes);
  EXPECT_EQ(sum.written_bytes, engine_->counters().written_bytes);
}

TEST_P(StripedFileTest, AWholeTransferIsSharedByWeight) {
  const std::vector<std::byte> bytes(kSize, std::byte{1});
  engine_->begin_write(*file_, 0, bytes).finish();
  EXPECT_EQ(engine_->drive_counters(0).written_bytes, kSize / 2);
  EXPECT_EQ(engine_->drive_counters(1).written_bytes, kSize / 4);
  EXPECT_EQ(engine_->drive_counters(2).written_bytes, kSize / 4);
}

TEST_P(StripedFileTest, AnErrorNamesTheDriveThatHadIt) {
  std::filesystem::resize_file(dir_.file("part1"), 0);
  std::vector<std::byte> bytes(kSize);
  Ticket read = engine_->begin_read(*file_, 0, bytes);
  EXPECT_NE(message_of<IoError>([&] { read.finish(); }).find("part1"), std::string::npos);
  EXPECT_LT(file_->size_bytes(), kSize);
  // The other drives continue.
  engine_->begin_read(*file_, 0, std::span(bytes).first(kChunk)).finish();
}

TEST_P(StripedFileTest, MemoryIsRegisteredWithAllQueuesOrNone) {
  std::vector<std::byte> memory(1U << 20U);
  const Registration registered = engine_->register_memory(memory);
  EXPECT_EQ(registered.active(), GetParam() == BackendKind::io_uring) << registered.why_not();
  engine_->begin_write(*file_, 0, std::span<const std::byte>(memory).first(kSize)).finish();
}

INSTANTIATE_TEST_SUITE_P(AllBackends, StripedFileTest, ::testing::ValuesIn(built_backends()),
                         [](const auto& backend) { return name_of(backend.param); });

// Two parts of one directory, in turn by pages.
StripedFile make_two_parts(const TempDir& dir, std::uint64_t size_bytes) {
  std::vector<SwapFile> parts;
  for (std::size_t i = 0; i < 2; ++i)
    parts.emplace_back(dir.file("part" + std::to_string(i)), OpenMode::create, DirectIo::off, i);
  StripedFile file(std::move(parts), StripeLayout({1, 1}, 4096));
  file.allocate(size_bytes);
  return file;
}

// One queue for several drives, as for a reader of a striped file.
TEST(StripedFile, NeedsNoQueueForEachDrive) {
  const TempDir dir;
  const StripedFile file = make_two_parts(dir, 65536);
  IoEngine engine(make_backend(BackendKind::threads, 4, 2).backend, {});
  const std::vector<std::byte> bytes(65536, std::byte{9});
  engine.begin_write(file, 0, bytes).finish();
  std::vector<std::byte> back(65536);
  engine.begin_read(file, 0, back).finish();
  EXPECT_EQ(back, bytes);
  EXPECT_EQ(file.parts()[1].size_bytes(), 32768U);
}

TEST(StripedFile, NeedsAsManyPartsAsItsLayout) {
  const TempDir dir;
  std::vector<SwapFile> parts;
  parts.emplace_back(dir.file("part"), OpenMode::create, DirectIo::off);
  EXPECT_THROW(StripedFile(std::move(parts), StripeLayout({1, 1}, 4096)), InvalidArgument);
}

TEST(StripedFile, ThatWasMovedAwayIsAnError) {
  const TempDir dir;
  IoEngine engine(make_backend(BackendKind::threads, 4, 2).backend, {});
  std::vector<StripedFile> files;
  files.push_back(make_two_parts(dir, 8192));
  files.emplace_back(SwapFile(dir.file("one"), OpenMode::create, DirectIo::off));
  for (StripedFile& file : files) {
    const StripedFile moved = std::move(file);
    // NOLINTBEGIN(bugprone-use-after-move): the subject
    std::vector<std::byte> bytes(4096);
    EXPECT_THROW((void)file.path(), InvalidArgument);
    EXPECT_THROW((void)file.size_bytes(), InvalidArgument);
    EXPECT_THROW(file.allocate(4096), InvalidArgument);
    EXPECT_THROW(file.sync_data(), InvalidArgument);
    EXPECT_THROW(engine.begin_read(file, 0, bytes), InvalidArgument);
    EXPECT_THROW(engine.begin_write(file, 0, bytes), InvalidArgument);
    // NOLINTEND(bugprone-use-after-move)
    EXPECT_NO_THROW(engine.begin_write(moved, 0, bytes).finish());
  }
}

TEST(StripedFile, HasCountersForTheDrivesOfItsEngineOnly) {
  const IoEngine engine(make_backend(BackendKind::threads, 4, 2).backend, {});
  EXPECT_EQ(engine.drive_counters(0).requests, 0U);
  EXPECT_THROW(engine.drive_counters(1), InvalidArgument);
}

// The ticket of a striped transfer ends with its slowest part, not before.
TEST(StripedFile, EndsWithItsLastPart) {
  const TempDir dir;
  const StripedFile file = make_two_parts(dir, 8192);
  FaultyOptions slow;
  slow.rule = [](const IoRequest&, std::uint64_t) { return Fault::held(); };
  auto held = std::make_unique<FaultyBackend>(make_backend(BackendKind::threads, 4, 1).backend,
                                              std::move(slow));
  FaultyBackend& holder = *held;
  std::vector<std::unique_ptr<IoBackend>> backends;
  backends.push_back(make_backend(BackendKind::threads, 4, 1).backend);
  backends.push_back(std::move(held));
  IoEngine engine(std::move(backends), {});
  std::vector<std::byte> bytes(8192);
  Ticket read = engine.begin_read(file, 0, bytes);
  while (engine.drive_counters(0).read_bytes == 0) std::this_thread::yield();
  EXPECT_FALSE(read.done());
  holder.release_held();
  read.finish();
}

TEST(DriveRates, AreMeasuredAndLeaveNothingBehind) {
  const TempDir a;
  const TempDir b;
  const std::vector<std::string> directories{a.path(), b.path()};
  const LoadPattern patterns[] = {LoadPattern::read, LoadPattern::mixed};
  const DriveRatesOptions options{.backend = BackendKind::threads, .io_threads = 2, .seconds = 0.2};
  const auto measured = measure_drive_rates(directories, patterns, options);
  ASSERT_EQ(measured.size(), 2U);
  for (const double rate : measured[0]) EXPECT_GT(rate, 0);
  const std::vector<double>& rates = measured[1];
  ASSERT_EQ(rates.size(), 2U);
  EXPECT_GT(rates[0], 0);
  EXPECT_GT(rates[1], 0);
  EXPECT_TRUE(std::filesystem::is_empty(a.path()));
  EXPECT_TRUE(std::filesystem::is_empty(b.path()));
  const std::vector<std::string> absent{a.path(), a.path() + "/absent"};
  EXPECT_THROW(measure_drive_rates(absent, patterns, options), IoError);
  EXPECT_THROW(check_drive_rates(absent, 256 * kKiB), IoError);
  check_drive_rates(directories, 256 * kKiB);
  EXPECT_THROW(check_drive_rates(directories, std::uint64_t{1} << 50U), DoesNotFit);
  EXPECT_TRUE(std::filesystem::is_empty(a.path()));
}

TEST(SlowDrive, IsTheOneThatTheOthersWaitedFor) {
  const auto found = [](std::vector<double> busy_seconds) { return slow_drive(busy_seconds); };
  EXPECT_EQ(found({10}), std::nullopt);
  EXPECT_EQ(found({10, 9}), std::nullopt);
  EXPECT_EQ(found({10, 16}), 1U);
  EXPECT_EQ(found({30, 16, 12}), 0U);
  EXPECT_EQ(found({30, 29, 12}), std::nullopt);
  EXPECT_EQ(found({0.1, 0.9}), std::nullopt);
}

}  // namespace
}  // namespace sluice::nvme
