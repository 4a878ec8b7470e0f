#include "sluice/offload/device_span.hpp"

#include <gtest/gtest.h>

#include <array>
#include <span>
#include <type_traits>

namespace sluice::offload {
namespace {

static_assert(!std::is_convertible_v<std::span<std::byte>, DeviceSpan>);
static_assert(!std::is_convertible_v<DeviceSpan, std::span<std::byte>>);
static_assert(!std::is_constructible_v<DeviceSpan, std::span<std::byte>>);
static_assert(!std::is_constructible_v<std::span<std::byte>, DeviceSpan>);

TEST(DeviceSpan, IsEmptyWithoutMemory) {
  EXPECT_TRUE(DeviceSpan().empty());
  EXPECT_EQ(DeviceSpan().address(), nullptr);
  EXPECT_EQ(DeviceSpan().size_bytes(), 0U);
}

TEST(DeviceSpan, HasPartsAsASpanHas) {
  std::array<std::byte, 100> memory{};
  const DeviceSpan all(memory.data(), memory.size());
  EXPECT_FALSE(all.empty());
  EXPECT_EQ(all.address(), memory.data());
  EXPECT_EQ(all.first(10), DeviceSpan(memory.data(), 10));
  EXPECT_EQ(all.subspan(30), DeviceSpan(memory.data() + 30, 70));
  EXPECT_EQ(all.subspan(30, 20), DeviceSpan(memory.data() + 30, 20));
  EXPECT_TRUE(all.subspan(100).empty());
}

TEST(DeviceSpan, DiffersByAddressAndBySize) {
  std::array<std::byte, 100> memory{};
  const DeviceSpan all(memory.data(), memory.size());
  EXPECT_EQ(all, all.subspan(0));
  EXPECT_NE(all.first(50), all.first(51));
  EXPECT_NE(all.subspan(1, 50), all.first(50));
}

}  // namespace
}  // namespace sluice::offload
