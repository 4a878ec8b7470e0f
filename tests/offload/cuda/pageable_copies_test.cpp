// Copies of memory that is not registered, over FakeCuda: the runtime blocks the thread that issues
// one until it has run.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/cuda_device.hpp"
#include "fake_cuda.hpp"
#include "offload/device/device_conformance.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"

namespace sluice::offload {

using test::FakeCuda;
using test::filled;
using test::Gate;
using test::message_of;
using testing::HasSubstr;

namespace test {
INSTANTIATE_TEST_SUITE_P(FakePageable, DeviceConformance,
                         testing::Values(DeviceCase{
                             "cuda_pageable",
                             [](std::uint64_t memory_bytes, std::string&) {
                               auto api = std::make_shared<FakeCuda>();
                               api->pageable_copies_block = true;
                               return std::shared_ptr<Device>(cuda::make_device(
                                   std::move(api), {.memory_bytes = memory_bytes,
                                                    .host_memory = HostMemory::pageable}));
                             }}),
                         name_of_case);
}  // namespace test

namespace {

class PageableCopies : public testing::Test {
 protected:
  static constexpr std::size_t kSizeBytes = kPageBytes;

  PageableCopies() {
    api->pageable_copies_block = true;
    EXPECT_EQ(api->stream_create(&compute, 0), cudaSuccess);
    device = cuda::make_device(api, {.memory_bytes = 1U << 20U,
                                     .compute_stream = compute,
                                     .host_memory = HostMemory::pageable});
    pinned = std::make_unique<MemoryPool>(Tier::pinned, kUnlimited, device->make_pinned_source());
    a = device->memory().allocate(kSizeBytes, "a");
  }
  ~PageableCopies() override {
    a.reset();
    pinned.reset();
    device.reset();
    EXPECT_EQ(api->stream_destroy(compute), cudaSuccess);
  }
  // A kernel that fills `a`, when `gate` is open.
  void fill(int value, const Gate& gate) {
    api->launch(compute, [this, at = a.device_span().address(), value, wait = gate.waiter()] {
      wait();
      std::memset(api->as_device(at), value, kSizeBytes);
    });
  }

  const std::shared_ptr<FakeCuda> api = std::make_shared<FakeCuda>();
  cudaStream_t compute = nullptr;
  std::unique_ptr<Device> device;
  std::unique_ptr<MemoryPool> pinned;
  Buffer a;
};

// As the thread that trains sends a gradient home: it issues the next unit's work meanwhile.
TEST_F(PageableCopies, DoNotBlockTheCallerUntilTheWorkBeforeHasEnded) {
  Gate gate;
  fill(7, gate);
  auto gradient = filled(kSizeBytes, 0);
  Ticket out = device->begin_copy_out(gradient, a.device_span());
  const Buffer b = device->memory().allocate(kSizeBytes, "b");
  const auto from = filled(kSizeBytes, 3);
  Ticket in = device->begin_copy_in(b.device_span(), from);
  EXPECT_FALSE(out.done());
  EXPECT_FALSE(in.done());
  gate.open();
  out.finish();
  in.finish();
  EXPECT_EQ(gradient, filled(kSizeBytes, 7));
  EXPECT_EQ(std::memcmp(api->as_device(b.device_span().address()), from.data(), kSizeBytes), 0);
}

TEST_F(PageableCopies, KeepTheOrderOfTheCallsBesidePinnedOnes) {
  const Buffer host = pinned->allocate(kSizeBytes, "host");
  std::vector<Ticket> tickets;
  Gate gate;
  fill(7, gate);
  const ComputePoint behind = device->mark_compute();
  std::vector<std::vector<std::byte>> from;
  for (int i = 0; i < 20; ++i) from.push_back(filled(kSizeBytes, i));
  std::memset(host.data(), 99, kSizeBytes);
  for (const auto& each : from) {
    tickets.push_back(device->begin_copy_in(a.device_span(), each, behind));
    tickets.push_back(device->begin_copy_in(a.device_span(), host.bytes(), behind));
  }
  tickets.push_back(device->begin_copy_in(a.device_span(), from[5], behind));
  EXPECT_FALSE(tickets.front().done());
  gate.open();
  tickets.back().wait();
  EXPECT_TRUE(all_done(tickets));
  finish_all(tickets);
  EXPECT_EQ(std::memcmp(api->as_device(a.device_span().address()), from[5].data(), kSizeBytes), 0);
}

// The event of a point may be recorded anew once the point is gone.
TEST_F(PageableCopies, WaitForTheirPointAlsoWhenTheCallerHasDroppedIt) {
  Gate first;
  fill(1, first);
  auto busy = filled(kSizeBytes, 0);
  Ticket before = device->begin_copy_out(busy, a.device_span());  // the thread is at this one
  auto to = filled(kSizeBytes, 0);
  Gate second;
  fill(2, second);
  Ticket out = device->begin_copy_out(to, a.device_span(), device->mark_compute());
  Gate third;
  fill(3, third);
  static_cast<void>(device->mark_compute());
  first.open();
  before.finish();
  EXPECT_FALSE(out.done());
  second.open();
  out.finish();  // and not behind the third
  EXPECT_EQ(to, filled(kSizeBytes, 2));
  third.open();
}

TEST_F(PageableCopies, TellTheirTicketWhichCallFailedAndGoOn) {
  const auto from = filled(kSizeBytes, 3);
  for (const char* function : {"stream_wait_event", "event_record", "memcpy_async"}) {
    const ComputePoint point = device->mark_compute();
    api->fail(function, 1, cudaErrorInvalidValue);
    Ticket in = device->begin_copy_in(a.device_span(), from, point);
    EXPECT_THAT(message_of([&] { in.finish(); }),
                testing::AllOf(HasSubstr("copying 4.00 KiB to the GPU"), HasSubstr(function)));
    device->begin_copy_in(a.device_span(), from).finish();
  }
}

}  // namespace
}  // namespace sluice::offload
