#include "sluice/offload/mover.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/offload/buffer_ring.hpp"
#include "temp_dir.hpp"
#include "wrapped_backend.hpp"

namespace sluice::offload {
namespace {

using test::Fault;
using test::FaultyBackend;
using test::GatedBackend;

constexpr std::size_t kTile = 8192;
constexpr std::uint64_t kHomeSpacing = 64 * kKiB;  // between the homes of one file
constexpr MoverOptions kOptions{.tile_bytes = kTile, .tiles = 3};

std::unique_ptr<nvme::IoBackend> real_backend() {
  return nvme::make_backend(nvme::BackendKind::automatic, 32, 2).backend;
}

void fill(std::span<std::byte> bytes, unsigned seed) {
  std::mt19937 random(seed);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
}

bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

// A device, pools of all tiers, an engine and a file, without a mover yet.
class MoverTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kFileBytes = 64 * kHomeSpacing;

  MoverTest() { file_.allocate(kFileBytes); }

  void start(std::unique_ptr<nvme::IoBackend> backend = real_backend()) {
    io_.emplace(std::move(backend), nvme::IoEngineOptions{.block_bytes = 4096, .depth = 8});
    mover_.emplace(*device_, &*io_, &staging_, kOptions);
  }
  TieredBytes file_home(std::uint64_t slot, std::uint64_t size_bytes) const {
    return TieredBytes(FileRange{&file_, slot * kHomeSpacing, size_bytes});
  }
  TieredBytes home(Tier tier, std::uint64_t size_bytes, std::uint64_t slot = 0) {
    switch (tier) {
      case Tier::device:
        return TieredBytes(tier, device_->memory().allocate(size_bytes, "home"));
      case Tier::pinned:
        return TieredBytes(tier, pinned_.allocate(size_bytes, "home"));
      case Tier::host:
        return TieredBytes(tier, host_.allocate(size_bytes, "home"));
      case Tier::nvme:
        break;
    }
    return file_home(slot, size_bytes);
  }
  Buffer device_buffer(std::size_t size_bytes, unsigned seed) {
    Buffer buffer = device_->memory().allocate(size_bytes, "device bytes");
    fill(seen(buffer), seed);
    return buffer;
  }
  // Device memory, as the host sees it.
  std::span<std::byte> seen(const Buffer& buffer) const {
    return device_->host_view(buffer.device_span());
  }
  // Bytes of the file, read without the mover.
  std::vector<std::byte> file_bytes(std::uint64_t offset_bytes, std::size_t size_bytes) {
    std::vector<std::byte> bytes(size_bytes);
    io_->begin_read(file_, offset_bytes, bytes).finish();
    return bytes;
  }

  sluice::test::TempDir dir_;
  nvme::StripedFile file_{
      nvme::SwapFile(dir_.file("homes"), nvme::OpenMode::create, nvme::DirectIo::automatic)};
  MemoryPool host_{Tier::host, kUnlimited, make_host_source()};
  MemoryPool pinned_{Tier::pinned, kUnlimited, make_pinned_source()};
  MemoryPool staging_{Tier::host, kUnlimited, make_host_source()};
  std::unique_ptr<Device> device_ = make_host_device({});
  Fault fault_;
  std::optional<nvme::IoEngine> io_;
  std::optional<Mover> mover_;
};

class EveryTier : public MoverTest,
                  public ::testing::WithParamInterface<std::tuple<Tier, std::size_t>> {};

INSTANTIATE_TEST_SUITE_P(
    Sizes, EveryTier,
    ::testing::Combine(::testing::Values(Tier::device, Tier::pinned, Tier::host, Tier::nvme),
                       ::testing::Values(1, 63, 4095, 4096, 5000, kTile - 1, kTile, kTile + 1,
                                         3 * kTile, 3 * kTile + 777, 7 * kTile + 1)),
    [](const auto& instance) {
      return std::string(name_of(std::get<0>(instance.param))) + "_" +
             std::to_string(std::get<1>(instance.param));
    });

TEST_P(EveryTier, TakesBytesThereAndBack) {
  const auto [tier, size_bytes] = GetParam();
  start();
  const TieredBytes place = home(tier, size_bytes);
  const Buffer out = device_buffer(size_bytes, 1);
  const Buffer back = device_buffer(size_bytes, 2);
  mover_->begin_store(out.device_span(), place).finish();
  mover_->begin_fetch(place, back.device_span()).finish();
  EXPECT_TRUE(same(seen(out), seen(back)));
}

TEST_P(EveryTier, TakesTheFirstBytesOfALargerHome) {
  const auto [tier, size_bytes] = GetParam();
  const std::uint64_t home_bytes = size_bytes + 10000;
  start();
  const TieredBytes place = home(tier, home_bytes);
  const Buffer whole = device_buffer(home_bytes, 1);
  mover_->begin_store(whole.device_span(), place).finish();
  const Buffer part = device_buffer(size_bytes, 2);
  mover_->begin_store(part.device_span(), place).finish();

  const Buffer back = device_buffer(size_bytes, 3);
  mover_->begin_fetch(place, back.device_span()).finish();
  EXPECT_TRUE(same(seen(part), seen(back)));
  // In a file, the rest of the last block may have become zero; beyond it nothing has changed.
  const Buffer all = device_buffer(home_bytes, 4);
  mover_->begin_fetch(place, all.device_span()).finish();
  const std::size_t kept_from =
      place.in_memory() ? size_bytes : static_cast<std::size_t>(align_up(size_bytes, kPageBytes));
  EXPECT_TRUE(same(seen(all).subspan(kept_from), seen(whole).subspan(kept_from)));
}

TEST_F(MoverTest, LeavesTheFileBesideAHomeAlone) {
  start();
  std::vector<std::byte> before(kHomeSpacing);
  fill(before, 5);
  io_->begin_write(file_, 0, before).finish();
  // A home in the middle that ends within a block.
  const TieredBytes place(FileRange{&file_, 8192, 5000});
  const Buffer out = device_buffer(5000, 6);
  mover_->begin_store(out.device_span(), place).finish();
  std::vector<std::byte> expected = before;
  std::copy(seen(out).begin(), seen(out).end(), expected.begin() + 8192);
  EXPECT_EQ(file_bytes(0, kHomeSpacing), expected);
}

TEST_F(MoverTest, StoresAtAnyOffsetOfAFile) {
  start();
  for (const std::uint64_t offset : {1U, 511U, 904U, 4095U, 5000U}) {
    for (const std::size_t size : {std::size_t{100}, std::size_t{9000}, 4 * kTile + 1}) {
      std::vector<std::byte> expected(kHomeSpacing);
      fill(expected, 5);
      io_->begin_write(file_, 0, expected).finish();
      const TieredBytes place(FileRange{&file_, offset, size});
      const Buffer out = device_buffer(size, 6);
      mover_->begin_store(out.device_span(), place).finish();
      std::copy(seen(out).begin(), seen(out).end(),
                expected.begin() + static_cast<std::ptrdiff_t>(offset));
      EXPECT_EQ(file_bytes(0, kHomeSpacing), expected) << offset << ", " << size << " bytes";
      const Buffer back = device_buffer(size, 7);
      mover_->begin_fetch(place, back.device_span()).finish();
      EXPECT_TRUE(same(seen(out), seen(back))) << offset << ", " << size << " bytes";
    }
  }
}

TEST_F(MoverTest, WritesZerosUpToTheEndOfABlockThatTheHomeOwns) {
  start();
  std::vector<std::byte> before(kHomeSpacing);
  fill(before, 5);
  io_->begin_write(file_, 0, before).finish();
  const Buffer out = device_buffer(5000, 6);
  mover_->begin_store(out.device_span(), file_home(0, 8192)).finish();
  EXPECT_EQ(file_bytes(5000, 8192 - 5000), std::vector<std::byte>(8192 - 5000));
}

TEST_F(MoverTest, NeedsNoBounceBufferWhereTheHomeHasWholeBlocks) {
  start();
  const std::size_t size_bytes = 3 * kTile + 777;
  const TieredBytes place = file_home(0, align_up(size_bytes, kPageBytes));
  const Buffer bytes = device_buffer(size_bytes, 1);
  mover_->begin_store(bytes.device_span(), place).finish();
  mover_->begin_fetch(place, bytes.device_span()).finish();
  EXPECT_EQ(io_->counters().bounce_bytes, 0U);
}

TEST_F(MoverTest, TakesTwoRingsOfStagingAndNotAByteMore) {
  start();
  const std::uint64_t formula = 2 * kOptions.tiles * kOptions.tile_bytes;
  EXPECT_EQ(staging_.usage().live_bytes, formula);
  const Buffer bytes = device_buffer(7 * kTile, 1);
  mover_->begin_store(bytes.device_span(), file_home(0, 7 * kTile)).finish();
  mover_->begin_fetch(file_home(0, 7 * kTile), bytes.device_span()).finish();
  EXPECT_EQ(staging_.usage().peak_live_bytes, formula);
  mover_.reset();
  EXPECT_EQ(staging_.usage().live_bytes, 0U);
}

TEST_F(MoverTest, CountsOnlyLinksThatWereUsed) {
  start();
  const TieredBytes host = home(Tier::host, 1000);
  const TieredBytes device = home(Tier::device, 1000);
  const Buffer bytes = device_buffer(1000, 1);
  mover_->begin_store(bytes.device_span(), host).finish();
  mover_->begin_store(bytes.device_span(), device).finish();
  mover_->begin_store(bytes.device_span(), file_home(0, 1000)).finish();
  mover_->begin_fetch(host, bytes.device_span()).finish();
  mover_->begin_fetch(device, bytes.device_span()).finish();
  EXPECT_EQ(device_->counters().out_bytes, 2000U);
  EXPECT_EQ(device_->counters().in_bytes, 1000U);
}

TEST_F(MoverTest, ReportsAFailedReadToItsTransferAlone) {
  start(std::make_unique<FaultyBackend>(real_backend(), fault_));
  const std::size_t size_bytes = 5 * kTile;
  const Buffer out = device_buffer(size_bytes, 1);
  for (std::uint64_t slot = 0; slot < 3; ++slot) {
    mover_->begin_store(out.device_span(), file_home(slot, size_bytes)).finish();
  }
  for (const int request : {0, 3, 9}) {  // the first, the middle, the last of ten blocks
    fault_.requests_until = request;
    const Buffer bad = device_buffer(size_bytes, 2);
    const Buffer good = device_buffer(size_bytes, 3);
    const TieredBytes first = file_home(0, size_bytes);
    const TieredBytes second = file_home(1, size_bytes);
    Ticket failing = mover_->begin_fetch(first, bad.device_span());
    Ticket following = mover_->begin_fetch(second, good.device_span());
    try {
      failing.finish();
      ADD_FAILURE() << "did not throw";
    } catch (const IoError& error) {
      EXPECT_EQ(error.code().value(), EIO);
      EXPECT_EQ(error.path(), file_.path());
    }
    EXPECT_NO_THROW(following.finish());
    EXPECT_TRUE(same(seen(out), seen(good)));
  }
}

TEST_F(MoverTest, ReportsAFailedWriteToItsTransferAlone) {
  start(std::make_unique<FaultyBackend>(real_backend(), fault_));
  const std::size_t size_bytes = 5 * kTile;
  const Buffer out = device_buffer(size_bytes, 1);
  fault_.op = nvme::IoOp::write;
  fault_.requests_until = 4;
  const TieredBytes first = file_home(0, size_bytes);
  const TieredBytes second = file_home(1, size_bytes);
  Ticket failing = mover_->begin_store(out.device_span(), first);
  Ticket following = mover_->begin_store(out.device_span(), second);
  EXPECT_THROW(failing.finish(), IoError);
  EXPECT_NO_THROW(following.finish());
  const Buffer back = device_buffer(size_bytes, 2);
  mover_->begin_fetch(second, back.device_span()).finish();
  EXPECT_TRUE(same(seen(out), seen(back)));
}

TEST_F(MoverTest, FlowsFromOneTransferToTheNextWithoutDraining) {
  auto gate = std::make_unique<GatedBackend>(real_backend(), 2);
  GatedBackend& gated = *gate;
  start(std::move(gate));
  // Four transfers of one block each. The first is let through alone, the next two only together: a
  // mover that drained between transfers would wait for ever.
  std::vector<TieredBytes> homes;
  std::vector<Buffer> buffers;
  std::vector<Ticket> tickets;
  for (std::uint64_t slot = 0; slot < 4; ++slot) {
    homes.push_back(file_home(slot, 4096));
    buffers.push_back(device_buffer(4096, 1));
    tickets.push_back(mover_->begin_fetch(homes.back(), buffers.back().device_span()));
  }
  gated.open();
  EXPECT_NO_THROW(finish_all(tickets));
}

TEST_F(MoverTest, ServesManyTransfersOfManyThreads) {
  start();
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kHomes = 6;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int repeat = 0; repeat < 6; ++repeat) {
        std::vector<TieredBytes> homes;
        std::vector<Buffer> out;
        std::vector<Buffer> back;
        std::vector<Ticket> tickets;
        for (std::size_t i = 0; i < kHomes; ++i) {
          constexpr Tier kTiers[] = {Tier::nvme,   Tier::host,   Tier::nvme,
                                     Tier::pinned, Tier::device, Tier::nvme};
          const std::size_t size_bytes = 1 + random() % (5 * kTile);
          homes.push_back(home(kTiers[i], size_bytes, t * kHomes + i));
          out.push_back(device_buffer(size_bytes, static_cast<unsigned>(random())));
          back.push_back(device_buffer(size_bytes, 0));
        }
        for (std::size_t i = 0; i < kHomes; ++i) {
          tickets.push_back(mover_->begin_store(out[i].device_span(), homes[i]));
        }
        finish_all(tickets);
        for (std::size_t i = 0; i < kHomes; ++i) {
          tickets.push_back(mover_->begin_fetch(homes[i], back[i].device_span()));
        }
        finish_all(tickets);
        for (std::size_t i = 0; i < kHomes; ++i) {
          ASSERT_TRUE(same(seen(out[i]), seen(back[i]))) << t << " " << repeat << " " << i;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(MoverTest, EndsWhatWasBegunBeforeItIsGone) {
  start();
  const Buffer bytes = device_buffer(6 * kTile, 1);
  std::vector<TieredBytes> homes;
  std::vector<Ticket> tickets;
  for (std::uint64_t slot = 0; slot < 4; ++slot) {
    homes.push_back(file_home(slot, 6 * kTile));
    tickets.push_back(mover_->begin_store(bytes.device_span(), homes.back()));
  }
  mover_.reset();
  EXPECT_TRUE(all_done(tickets));
  EXPECT_NO_THROW(finish_all(tickets));
  EXPECT_TRUE(same(file_bytes(3 * kHomeSpacing, 6 * kTile), seen(bytes)));
}

TEST_F(MoverTest, RefusesTransfersLargerThanTheHome) {
  start();
  const Buffer bytes = device_buffer(1001, 1);
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
    const TieredBytes place = home(tier, 1000);
    EXPECT_THROW(mover_->begin_fetch(place, bytes.device_span()), InvalidArgument);
    EXPECT_THROW(mover_->begin_store(bytes.device_span(), place), InvalidArgument);
  }
}

TEST_F(MoverTest, FinishesEmptyTransfersAtOnce) {
  start();
  EXPECT_TRUE(mover_->begin_fetch(file_home(0, 100), {}).done());
  EXPECT_TRUE(mover_->begin_store({}, file_home(0, 100)).done());
}

TEST_F(MoverTest, WithoutAnEngineServesMemoryOnlyAndTakesNoStaging) {
  Mover mover(*device_, nullptr, nullptr, kOptions);
  const TieredBytes place = home(Tier::host, 1000);
  const Buffer out = device_buffer(1000, 1);
  const Buffer back = device_buffer(1000, 2);
  mover.begin_store(out.device_span(), place).finish();
  mover.begin_fetch(place, back.device_span()).finish();
  EXPECT_TRUE(same(seen(out), seen(back)));
  EXPECT_THROW(mover.begin_fetch(file_home(0, 1000), back.device_span()), InvalidArgument);
  EXPECT_THROW(mover.begin_store(back.device_span(), file_home(0, 1000)), InvalidArgument);
  EXPECT_EQ(staging_.usage().peak_live_bytes, 0U);
}

TEST_F(MoverTest, ChecksItsOptions) {
  start();
  const auto make = [this](std::size_t tile_bytes, std::size_t tiles) {
    Mover(*device_, &*io_, &staging_, MoverOptions{.tile_bytes = tile_bytes, .tiles = tiles});
  };
  EXPECT_THROW(make(4097, 3), InvalidArgument);
  EXPECT_THROW(make(0, 3), InvalidArgument);
  EXPECT_THROW(make(4096, 2), InvalidArgument);
  EXPECT_THROW(Mover(*device_, &*io_, nullptr, kOptions), InvalidArgument);
  EXPECT_THROW(Mover(*device_, nullptr, &staging_, kOptions), InvalidArgument);
  MemoryPool small(Tier::host, 5 * kTile, make_host_source());
  EXPECT_THROW(Mover(*device_, &*io_, &small, kOptions), OutOfMemory);
  EXPECT_EQ(small.usage().live_bytes, 0U);
}

}  // namespace
}  // namespace sluice::offload
