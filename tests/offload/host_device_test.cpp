#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "sluice/base/error.hpp"
#include "sluice/offload/device.hpp"

namespace sluice::offload {
namespace {

std::vector<std::byte> filled(std::size_t size_bytes, int value) {
  return std::vector<std::byte>(size_bytes, static_cast<std::byte>(value));
}

TEST(HostDevice, HasBudgetedDeviceMemory) {
  const auto device =
      make_host_device({.memory_bytes = 2 * kPageBytes, .bandwidth_bytes_per_second = {}});
  EXPECT_EQ(device->name(), "host");
  EXPECT_TRUE(device->host_addressable());
  EXPECT_EQ(device->memory().tier(), Tier::device);
  const Buffer buffer = device->memory().allocate(2 * kPageBytes, "all");
  EXPECT_THROW(device->memory().allocate(1, "more"), OutOfMemory);
}

TEST(HostDevice, CopiesInOutAndWithin) {
  const auto device = make_host_device({});
  const Buffer a = device->memory().allocate(1000, "a");
  const Buffer b = device->memory().allocate(1000, "b");
  const auto from = filled(1000, 7);
  auto to = filled(1000, 0);
  device->begin_copy_in(a.bytes(), from).finish();
  device->begin_copy_within(b.bytes(), a.bytes()).finish();
  device->begin_copy_out(to, b.bytes()).finish();
  EXPECT_EQ(to, from);
}

TEST(HostDevice, RunsCopiesInTheOrderOfTheCalls) {
  const auto device = make_host_device({});
  constexpr int kHops = 50;
  // Each copy reads what the one before wrote: out of order, the value would not arrive.
  std::vector<std::vector<std::byte>> cells(kHops + 1, filled(10000, 0));
  cells[0] = filled(10000, 9);
  std::vector<Ticket> tickets;
  for (std::size_t i = 0; i < kHops; ++i) {
    tickets.push_back(i % 2 == 0 ? device->begin_copy_in(cells[i + 1], cells[i])
                                 : device->begin_copy_out(cells[i + 1], cells[i]));
  }
  tickets.back().wait();
  EXPECT_TRUE(all_done(tickets));  // so the ones before have ended, too
  finish_all(tickets);
  EXPECT_EQ(cells[kHops], cells[0]);
}

TEST(HostDevice, CountsBytesByDirection) {
  const auto device = make_host_device({});
  auto a = filled(300, 1);
  auto b = filled(300, 2);
  device->begin_copy_in(a, b).finish();
  device->begin_copy_in(std::span(a).first(100), std::span(b).first(100)).finish();
  device->begin_copy_out(b, a).finish();
  device->begin_copy_within(a, b).finish();  // no link is used
  const CopyCounters counters = device->counters();
  EXPECT_EQ(counters.in_bytes, 400U);
  EXPECT_EQ(counters.out_bytes, 300U);
  EXPECT_GT(counters.in_busy_seconds, 0.0);
  EXPECT_GT(counters.out_busy_seconds, 0.0);
}

TEST(HostDevice, RefusesSpansOfDifferentSize) {
  const auto device = make_host_device({});
  auto a = filled(10, 0);
  auto b = filled(11, 0);
  EXPECT_THROW(device->begin_copy_in(a, b), InvalidArgument);
  EXPECT_THROW(device->begin_copy_out(a, b), InvalidArgument);
  EXPECT_THROW(device->begin_copy_within(a, b), InvalidArgument);
}

TEST(HostDevice, FinishesEmptyCopiesAtOnce) {
  const auto device = make_host_device({});
  EXPECT_TRUE(device->begin_copy_in({}, {}).done());
  EXPECT_EQ(device->counters().in_bytes, 0U);
}

TEST(HostDevice, EndsItsCopiesBeforeItIsGone) {
  auto device = make_host_device({});
  const auto from = filled(1 << 20, 3);
  std::vector<std::vector<std::byte>> to(8, filled(1 << 20, 0));
  std::vector<Ticket> tickets;
  for (auto& target : to) tickets.push_back(device->begin_copy_in(target, from));
  device.reset();
  EXPECT_TRUE(all_done(tickets));
  for (const auto& target : to) EXPECT_EQ(target, from);
}

TEST(HostDevice, TakesAtLeastTheTimeOfTheModelledLink) {
  constexpr double kBandwidth = 50e6;
  const auto device =
      make_host_device({.memory_bytes = kUnlimited, .bandwidth_bytes_per_second = kBandwidth});
  auto a = filled(500000, 1);
  auto b = filled(500000, 2);
  const auto begin = std::chrono::steady_clock::now();
  Ticket in = device->begin_copy_in(a, b);
  Ticket out = device->begin_copy_out(b, a);
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

TEST(HostDevice, TakesCopiesFromManyThreads) {
  const auto device = make_host_device({});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const auto from = filled(4096, i + 1);
      auto to = filled(4096, 0);
      const Buffer middle = device->memory().allocate(4096, "middle");
      for (int repeat = 0; repeat < 100; ++repeat) {
        Ticket in = device->begin_copy_in(middle.bytes(), from);
        device->begin_copy_out(to, middle.bytes()).finish();
        in.finish();
        ASSERT_EQ(to, from);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(device->counters().in_bytes, 4U * 100 * 4096);
}

}  // namespace
}  // namespace sluice::offload
