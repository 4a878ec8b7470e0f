#include "sluice/offload/tiered_bytes.hpp"

#include <gtest/gtest.h>

#include <utility>

#include "sluice/base/error.hpp"
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
    EXPECT_EQ(bytes.memory().size(), 100U);
    EXPECT_THROW(bytes.range(), InvalidArgument);
    const TieredBytes moved = std::move(bytes);
    EXPECT_EQ(moved.memory().size(), 100U);
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
  EXPECT_THROW(bytes.memory(), InvalidArgument);
}

TEST(TieredBytes, AreEitherMemoryOrAFile) {
  MemoryPool pool(Tier::host, kUnlimited, make_host_source());
  EXPECT_THROW(TieredBytes(Tier::nvme, pool.allocate(64, "home")), InvalidArgument);
  EXPECT_THROW(TieredBytes(FileRange{}), InvalidArgument);
}

}  // namespace
}  // namespace sluice::offload
