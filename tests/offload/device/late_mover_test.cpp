// Every way of the mover to and from a device waits for the compute work that uses the memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "late_device.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/nvme/striped_file.hpp"

#include "sluice/offload/direct_reader.hpp"
#include "sluice/offload/mover.hpp"
#include "temp_dir.hpp"

namespace sluice::offload::test {
namespace {

using ::testing::IsEmpty;

constexpr std::size_t kBlock = 4096;
constexpr std::size_t kBytes = 3 * kBlock + 100;

// Reads files as GPUDirect Storage does, by a copy after the point. Or declines.
class FakeReader final : public DirectReader {
 public:
  FakeReader(Device& device, bool declines) : device_(device), declines_(declines) {}
  std::optional<Ticket> begin_read(const FileRange&, DeviceSpan to,
                                   const ComputePoint& after) override {
    if (declines_) return std::nullopt;
    bytes_.resize(to.size_bytes());
    return device_.begin_copy_in(to, bytes_, after);
  }
  std::string why_not() const override { return ""; }

 private:
  Device& device_;
  const bool declines_;
  std::vector<std::byte> bytes_;
};

// No compute work ends before a copy waits for it.
class LateMover : public testing::Test {
 protected:
  LateMover() {
    file_.allocate(4 * kBlock);
    const std::vector<std::byte> bytes(4 * kBlock, std::byte{7});
    io_.begin_write(file_, 0, bytes).finish();
  }

  // The work that is issued last uses the buffer; then the mover moves it.
  void use() {
    device_.issue("compute", {{buffer_.device_span().address(), kBytes, /*writes=*/true}});
  }
  void fetch(const TieredBytes& home, DirectReader* direct = nullptr) {
    Mover mover(device_, &io_, &staging_, {.tile_bytes = kBlock, .tiles = 3, .direct = direct});
    use();
    mover.begin_fetch(home, buffer_.device_span()).finish();
    EXPECT_THAT(device_.violations(), IsEmpty());
  }
  void store(const TieredBytes& home) {
    Mover mover(device_, &io_, &staging_, {.tile_bytes = kBlock, .tiles = 3});
    use();
    mover.begin_store(buffer_.device_span(), home).finish();
    EXPECT_THAT(device_.violations(), IsEmpty());
  }
  TieredBytes in_file() const { return TieredBytes(FileRange{&file_, 0, kBytes}); }
  TieredBytes in_memory(Tier tier) {
    MemoryPool& pool = tier == Tier::device ? device_.memory() : staging_;
    return TieredBytes(tier, pool.allocate(kBytes, "home"));
  }

  LateDevice device_{{.compute_last = true}};
  const sluice::test::TempDir dir_;
  nvme::StripedFile file_{
      nvme::SwapFile(dir_.file("homes"), nvme::OpenMode::create, nvme::DirectIo::off)};
  nvme::IoEngine io_{nvme::make_backend(nvme::BackendKind::threads, 8, 2).backend, {}};
  MemoryPool staging_{Tier::host, kUnlimited, make_host_source()};
  const Buffer buffer_ = device_.memory().allocate(kBytes, "buffer");
};

TEST_F(LateMover, FetchesFromEveryTierAfterTheWork) {
  fetch(in_memory(Tier::device));
  fetch(in_memory(Tier::host));
  fetch(in_file());
}

TEST_F(LateMover, StoresToEveryTierAfterTheWork) {
  store(in_memory(Tier::device));
  store(in_memory(Tier::host));
  store(in_file());
}

TEST_F(LateMover, FetchesPastTilesAfterTheWork) {
  FakeReader reads(device_, /*declines=*/false);
  fetch(in_file(), &reads);
}

TEST_F(LateMover, FetchesByTilesAfterTheWorkWhereTheReaderDeclines) {
  FakeReader declines(device_, /*declines=*/true);
  fetch(in_file(), &declines);
}

}  // namespace
}  // namespace sluice::offload::test
