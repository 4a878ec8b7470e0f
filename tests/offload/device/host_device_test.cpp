#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "device_conformance.hpp"
#include "sluice/base/error.hpp"
#include "sluice/offload/device.hpp"

namespace sluice::offload {

namespace test {
INSTANTIATE_TEST_SUITE_P(Host, DeviceConformance,
                         testing::Values(DeviceCase{
                             "host",
                             [](std::uint64_t memory_bytes, std::string&) {
                               return std::shared_ptr<Device>(
                                   make_host_device({.memory_bytes = memory_bytes,
                                                     .bandwidth_bytes_per_second = std::nullopt}));
                             }}),
                         name_of_case);
}  // namespace test

namespace {

using test::filled;

TEST(HostDevice, IsAddressedByTheHost) {
  const auto device = make_host_device({});
  EXPECT_EQ(device->name(), "host");
  EXPECT_TRUE(device->host_addressable());
}

TEST(HostDevice, TakesAtLeastTheTimeOfTheModelledLink) {
  constexpr double kBandwidth = 50e6;
  const auto device =
      make_host_device({.memory_bytes = kUnlimited, .bandwidth_bytes_per_second = kBandwidth});
  const Buffer a = device->memory().allocate(500000, "a");
  auto b = filled(500000, 2);
  const auto begin = std::chrono::steady_clock::now();
  Ticket in = device->begin_copy_in(a.device_span(), b);
  Ticket out = device->begin_copy_out(b, a.device_span());
  in.finish();
  out.finish();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(took.count(), 2 * 500000 / kBandwidth);
  EXPECT_GE(device->counters().in_busy_seconds, 500000 / kBandwidth);
  EXPECT_GE(device->counters().out_busy_seconds, 500000 / kBandwidth);
}

TEST(HostDevice, NeedsABandwidthAboveZero) {
  EXPECT_THROW(make_host_device({.memory_bytes = kUnlimited, .bandwidth_bytes_per_second = 0.0}),
               InvalidArgument);
  EXPECT_THROW(make_host_device({.memory_bytes = kUnlimited, .bandwidth_bytes_per_second = -1.0}),
               InvalidArgument);
}

TEST(HostDevice, TellsTheTimeOfTimedPointsOnly) {
  const auto device = make_host_device({});
  EXPECT_TRUE(device->time_of(device->mark_time()).has_value());
  EXPECT_THROW(static_cast<void>(device->time_of(device->mark_compute())), InvalidArgument);
}

}  // namespace
}  // namespace sluice::offload
