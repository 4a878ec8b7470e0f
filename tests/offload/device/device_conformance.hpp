#pragma once
// The behaviour of every Device. A program of tests instantiates the suite with its devices.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "sluice/base/error.hpp"
#include "sluice/offload/device.hpp"

namespace sluice::offload::test {

struct DeviceCase {
  std::string name;
  // Null where the machine lacks the device, with the reason in `why_not`.
  std::function<std::shared_ptr<Device>(std::uint64_t memory_bytes, std::string& why_not)> make;
};

inline std::vector<std::byte> filled(std::size_t size_bytes, int value) {
  return std::vector<std::byte>(size_bytes, static_cast<std::byte>(value));
}

class DeviceConformance : public testing::TestWithParam<DeviceCase> {
 protected:
  static constexpr std::uint64_t kMemoryBytes = 16U << 20U;

  void SetUp() override {
    std::string why_not;
    device = GetParam().make(kMemoryBytes, why_not);
    if (device == nullptr) GTEST_SKIP() << why_not;
  }
  std::vector<std::byte> content(const Buffer& buffer) {
    std::vector<std::byte> to(buffer.size_bytes());
    device->begin_copy_out(to, buffer.device_span()).finish();
    return to;
  }

  std::shared_ptr<Device> device;
};

TEST_P(DeviceConformance, HasBudgetedDeviceMemory) {
  EXPECT_EQ(device->memory().tier(), Tier::device);
  EXPECT_FALSE(device->name().empty());
  const Buffer buffer = device->memory().allocate(kMemoryBytes, "all");
  EXPECT_THROW(device->memory().allocate(1, "more"), OutOfMemory);
}

TEST_P(DeviceConformance, TellsWhenAPointWasReached) {
  constexpr std::chrono::milliseconds kClocksAgreeWithin{2};
  const Buffer a = device->memory().allocate(1000, "a");
  const auto from = filled(1000, 7);
  const auto before = std::chrono::steady_clock::now();
  const ComputePoint point = device->mark_time();
  device->begin_copy_in(a.device_span(), from, point).finish();  // after it
  const auto reached = device->time_of(point);
  ASSERT_TRUE(reached.has_value());
  EXPECT_GE(*reached, before - kClocksAgreeWithin);
  EXPECT_LE(*reached, std::chrono::steady_clock::now() + kClocksAgreeWithin);
}

TEST_P(DeviceConformance, CopiesInOutAndWithin) {
  const Buffer a = device->memory().allocate(1000, "a");
  const Buffer b = device->memory().allocate(1000, "b");
  const auto from = filled(1000, 7);
  auto to = filled(1000, 0);
  device->begin_copy_in(a.device_span(), from).finish();
  device->begin_copy_within(b.device_span(), a.device_span()).finish();
  device->begin_copy_out(to, b.device_span()).finish();
  EXPECT_EQ(to, from);
}

TEST_P(DeviceConformance, RunsCopiesOfADirectionInTheOrderOfTheCalls) {
  constexpr std::size_t kHops = 50;
  // Each copy reads what the one before wrote: out of order, the value would not arrive.
  std::vector<Buffer> cells;
  for (std::size_t i = 0; i <= kHops; ++i)
    cells.push_back(device->memory().allocate(10000, "cell"));
  const auto from = filled(10000, 9);
  std::vector<Ticket> tickets;
  tickets.push_back(device->begin_copy_in(cells[0].device_span(), from));
  for (std::size_t i = 0; i < kHops; ++i)
    tickets.push_back(
        device->begin_copy_within(cells[i + 1].device_span(), cells[i].device_span()));
  tickets.back().wait();
  EXPECT_TRUE(all_done(tickets));  // so the ones before have ended, too
  finish_all(tickets);
  EXPECT_EQ(content(cells[kHops]), from);
}

TEST_P(DeviceConformance, CountsBytesByDirection) {
  const Buffer a = device->memory().allocate(300, "a");
  const Buffer b = device->memory().allocate(300, "b");
  auto host = filled(300, 1);
  device->begin_copy_in(a.device_span(), host).finish();
  device->begin_copy_in(a.device_span().first(100), std::span(host).first(100)).finish();
  device->begin_copy_out(host, a.device_span()).finish();
  device->begin_copy_within(b.device_span(), a.device_span()).finish();  // no link is used
  const CopyCounters counters = device->counters();
  EXPECT_EQ(counters.in_bytes, 400U);
  EXPECT_EQ(counters.out_bytes, 300U);
  EXPECT_GT(counters.in_busy_seconds, 0.0);
  EXPECT_GT(counters.out_busy_seconds, 0.0);
}

TEST_P(DeviceConformance, RefusesSpansOfDifferentSize) {
  const Buffer a = device->memory().allocate(10, "a");
  const Buffer b = device->memory().allocate(11, "b");
  auto host = filled(11, 0);
  EXPECT_THROW(device->begin_copy_in(a.device_span(), host), InvalidArgument);
  EXPECT_THROW(device->begin_copy_out(host, a.device_span()), InvalidArgument);
  EXPECT_THROW(device->begin_copy_within(a.device_span(), b.device_span()), InvalidArgument);
}

TEST_P(DeviceConformance, RunsWorksInTheOrderOfTheCalls) {
  std::vector<int> issued;
  std::vector<Ticket> tickets;
  tickets.reserve(10);
  for (int i = 0; i < 10; ++i) {
    tickets.push_back(device->begin_work({"work", [&, i](void*) { issued.push_back(i); }, {}},
                                         i % 2 == 0 ? ComputePoint() : device->mark_compute()));
  }
  finish_all(tickets);
  ASSERT_EQ(issued.size(), 10U);
  EXPECT_TRUE(std::is_sorted(issued.begin(), issued.end()));
}

TEST_P(DeviceConformance, GivesTheErrorOfAWorkToItsTicket) {
  Ticket failed =
      device->begin_work({"work", [](void*) { throw Error("no such kernel"); }, {}}, {});
  bool ran = false;
  Ticket after = device->begin_work({"work", [&](void*) { ran = true; }, {}}, {});
  EXPECT_THROW(failed.finish(), Error);
  after.finish();
  EXPECT_TRUE(ran);
}

TEST_P(DeviceConformance, FinishesEmptyCopiesAtOnce) {
  EXPECT_TRUE(device->begin_copy_in({}, {}).done());
  EXPECT_EQ(device->counters().in_bytes, 0U);
}

TEST_P(DeviceConformance, EndsItsCopiesBeforeItIsGone) {
  std::vector<std::vector<std::byte>> to(8, filled(1 << 20, 0));
  Buffer middle = device->memory().allocate(1 << 20, "middle");
  const auto from = filled(1 << 20, 3);
  device->begin_copy_in(middle.device_span(), from).finish();
  std::vector<Ticket> tickets;
  tickets.reserve(to.size());
  for (auto& target : to) tickets.push_back(device->begin_copy_out(target, middle.device_span()));
  middle.reset();
  device.reset();
  EXPECT_TRUE(all_done(tickets));
  for (const auto& target : to) EXPECT_EQ(target, from);
}

TEST_P(DeviceConformance, TakesCopiesFromManyThreads) {
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const auto from = filled(4096, i + 1);
      auto to = filled(4096, 0);
      const Buffer middle = device->memory().allocate(4096, "middle");
      for (int repeat = 0; repeat < 100; ++repeat) {
        device->begin_copy_in(middle.device_span(), from).finish();
        device->begin_copy_out(to, middle.device_span()).finish();
        ASSERT_EQ(to, from);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(device->counters().in_bytes, 4U * 100 * 4096);
}

TEST_P(DeviceConformance, CopiesFromItsPinnedMemory) {
  MemoryPool pinned(Tier::pinned, kUnlimited, device->make_pinned_source());
  const Buffer host = pinned.allocate(1 << 20, "pinned");
  const Buffer on_device = device->memory().allocate(1 << 20, "device");
  std::fill(host.bytes().begin(), host.bytes().end(), std::byte{5});
  device->begin_copy_in(on_device.device_span(), host.bytes()).finish();
  EXPECT_EQ(content(on_device), filled(1 << 20, 5));
}

TEST_P(DeviceConformance, ShowsItsMemoryToTheHostOnlyWhereTheHostAddressesIt) {
  const Buffer a = device->memory().allocate(1000, "a");
  EXPECT_THROW(a.bytes(), InvalidArgument);
  if (!device->host_addressable()) {
    EXPECT_THROW(device->host_view(a.device_span()), InvalidArgument);
    return;
  }
  const std::span<std::byte> seen = device->host_view(a.device_span());
  ASSERT_EQ(seen.size(), 1000U);
  std::fill(seen.begin(), seen.end(), std::byte{7});
  EXPECT_EQ(content(a), filled(1000, 7));
}

inline std::string name_of_case(const testing::TestParamInfo<DeviceCase>& info) {
  return info.param.name;
}

}  // namespace sluice::offload::test
