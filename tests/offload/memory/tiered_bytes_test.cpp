#include "sluice/offload/tiered_bytes.hpp"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "sluice/base/error.hpp"
#include "sluice/offload/device.hpp"
#include "temp_dir.hpp"

namespace sluice::offload {
namespace {

TEST(Tier, HasDistinctNames) {
  EXPECT_EQ(name_of(Tier::device), "device");
  EXPECT_EQ(name_of(Tier::pinned), "pinned");
  EXPECT_EQ(name_of(Tier::host), "host");
  EXPECT_EQ(name_of(Tier::nvme), "nvme");
}

TEST(FileRange, PartsAreInsideTheRange) {
  const FileRange range{nullptr, 4096, 1000};
  const FileRange part = range.part(100, 900);
  EXPECT_EQ(part.offset_bytes, 4196U);
  EXPECT_EQ(part.size_bytes, 900U);
  EXPECT_EQ(range.part(1000, 0).size_bytes, 0U);
  EXPECT_THROW(range.part(100, 901), InvalidArgument);
  EXPECT_THROW(range.part(1001, 0), InvalidArgument);
  EXPECT_THROW(range.part(2, ~0ULL), InvalidArgument);
}

TEST(TieredBytes, OwnsItsMemory) {
  MemoryPool pool(Tier::host, kUnlimited, make_host_source());
  {
    TieredBytes bytes(Tier::host, pool.allocate(100, "home"));
    EXPECT_EQ(bytes.tier(), Tier::host);
    EXPECT_EQ(bytes.size_bytes(), 100U);
    EXPECT_TRUE(bytes.in_memory());
    EXPECT_EQ(bytes.host_memory().size(), 100U);
    EXPECT_THROW(bytes.range(), InvalidArgument);
    const TieredBytes moved = std::move(bytes);
    EXPECT_EQ(moved.host_memory().size(), 100U);
    EXPECT_EQ(pool.usage().live_bytes, pool_bytes(100));
  }
  EXPECT_EQ(pool.usage().live_bytes, 0U);
}

TEST(TieredBytes, InAFileCannotBeTouched) {
  const sluice::test::TempDir dir;
  const nvme::StripedFile file(
      nvme::SwapFile(dir.file("home"), nvme::OpenMode::create, nvme::DirectIo::automatic));
  const TieredBytes bytes(FileRange{&file, 4096, 500});
  EXPECT_EQ(bytes.tier(), Tier::nvme);
  EXPECT_EQ(bytes.size_bytes(), 500U);
  EXPECT_FALSE(bytes.in_memory());
  EXPECT_EQ(bytes.range().offset_bytes, 4096U);
  EXPECT_THROW(bytes.host_memory(), InvalidArgument);
  EXPECT_THROW(bytes.device_memory(), InvalidArgument);
  EXPECT_THROW(bytes.host_view(*make_host_device({})), InvalidArgument);
}

TEST(TieredBytes, OnADeviceAreSeenByTheHostThroughTheDevice) {
  const auto device = make_host_device({});
  const TieredBytes bytes(Tier::device, device->memory().allocate(100, "home"));
  EXPECT_THROW(bytes.host_memory(), InvalidArgument);
  EXPECT_EQ(bytes.device_memory().size_bytes(), 100U);
  EXPECT_EQ(bytes.host_view(*device).data(), bytes.device_memory().address());
  EXPECT_EQ(bytes.host_view(*device).size(), 100U);
  const TieredBytes borrowed(bytes.device_memory().first(50));
  EXPECT_EQ(borrowed.tier(), Tier::device);
  EXPECT_EQ(borrowed.device_memory(), bytes.device_memory().first(50));
}

TEST(TieredBytes, InHostMemoryAreNotOnADevice) {
  const auto device = make_host_device({});
  std::vector<std::byte> memory(100);
  const TieredBytes bytes(Tier::host, memory);
  EXPECT_THROW(bytes.device_memory(), InvalidArgument);
  EXPECT_EQ(bytes.host_memory().data(), memory.data());
  EXPECT_EQ(bytes.host_view(*device).data(), memory.data());
}

TEST(TieredBytes, AreEitherMemoryOrAFile) {
  MemoryPool pool(Tier::host, kUnlimited, make_host_source());
  EXPECT_THROW(TieredBytes(Tier::nvme, pool.allocate(64, "home")), InvalidArgument);
  EXPECT_THROW(TieredBytes(FileRange{}), InvalidArgument);
}

TEST(TieredBytes, AreOnTheTierOfTheirMemory) {
  MemoryPool pool(Tier::host, kUnlimited, make_host_source());
  EXPECT_THROW(TieredBytes(Tier::device, pool.allocate(64, "home")), InvalidArgument);
  std::vector<std::byte> memory(64);
  EXPECT_THROW(TieredBytes(Tier::device, memory), InvalidArgument);
  EXPECT_THROW(TieredBytes(Tier::nvme, memory), InvalidArgument);
}

}  // namespace
}  // namespace sluice::offload
