// A device that is not the first GPU, over FakeCuda: a new thread's GPU is the first.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "cuda/cuda_device.hpp"
#include "fake_cuda.hpp"
#include "offload/device/device_conformance.hpp"
#include "sluice/base/bytes.hpp"

namespace sluice::offload {

using test::FakeCuda;
using test::filled;

namespace {

class SecondGpu : public testing::Test {
 protected:
  static constexpr std::size_t kBytes = 10000;

  SecondGpu() {
    api->device_count = 2;
    EXPECT_EQ(api->set_device(1), cudaSuccess);
    EXPECT_EQ(api->stream_create(&compute, 0), cudaSuccess);
    device = make();
  }
  ~SecondGpu() override {
    device.reset();
    EXPECT_EQ(api->stream_destroy(compute), cudaSuccess);
    EXPECT_EQ(api->set_device(0), cudaSuccess);
  }

  std::unique_ptr<Device> make() {
    return cuda::make_device(api,
                             {.index = 1, .memory_bytes = 1U << 20U, .compute_stream = compute});
  }

  const std::shared_ptr<FakeCuda> api = std::make_shared<FakeCuda>();
  cudaStream_t compute = nullptr;
  std::unique_ptr<Device> device;
};

// As the thread of updates does for a unit that is wholly on the GPU.
TEST_F(SecondGpu, RunsTheFirstWorkOfAThreadThatUsedNoGpuBefore) {
  std::thread([this] {
    Ticket work = device->begin_work({"update", [](void*) {}, {}}, {});
    EXPECT_NO_THROW(work.finish());
  }).join();
}

// A script's own tensors go to the device that it chose, whatever it calls between.
TEST_F(SecondGpu, LeavesTheDeviceOfTheCallersThread) {
  EXPECT_EQ(api->set_device(0), cudaSuccess);
  const auto expect_unchanged = [&](const char* call) {
    int now = -1;
    EXPECT_EQ(api->get_device(&now), cudaSuccess);
    EXPECT_EQ(now, 0) << call;
  };
  const auto from = filled(kBytes, 3);
  auto to = filled(kBytes, 0);
  Buffer a = device->memory().allocate(kBytes, "a");
  expect_unchanged("allocate");
  const ComputePoint point = device->mark_compute();
  expect_unchanged("mark_compute");
  static_cast<void>(device->has_passed(point));
  expect_unchanged("has_passed");
  const ComputePoint time = device->mark_time();
  expect_unchanged("mark_time");
  device->begin_copy_in(a.device_span(), from).finish();
  expect_unchanged("begin_copy_in");
  EXPECT_TRUE(device->time_of(time).has_value());
  expect_unchanged("time_of");
  device->begin_copy_out(to, a.device_span(), {}).finish();
  expect_unchanged("begin_copy_out");
  EXPECT_EQ(to, from);
  device->begin_work({"update", [](void*) {}, {}}, point).finish();
  expect_unchanged("begin_work");
  const auto pinned = device->make_pinned_source();
  pinned->free(pinned->allocate(kPageBytes), kPageBytes);
  expect_unchanged("make_pinned_source");
  cuda::let_waits_sleep(*api, 1);
  expect_unchanged("let_waits_sleep");
  make_device_stream(*device).reset();
  expect_unchanged("make_device_stream");
  a.reset();
  expect_unchanged("free");
  make().reset();
  expect_unchanged("make_device");
}

// A context takes some hundred MB of a GPU, which another rank computes on.
TEST_F(SecondGpu, MakesNoContextOnAGpuThatTheThreadHasNotUsed) {
  auto pinned = device->make_pinned_source();
  void* const block = pinned->allocate(kPageBytes);
  std::thread([&] { pinned->free(block, kPageBytes); }).join();
  pinned.reset();
  EXPECT_FALSE(api->has_context(0)) << "pinned memory";
  std::thread([this] {
    Buffer a = device->memory().allocate(kBytes, "a");
    auto to = filled(kBytes, 0);
    const ComputePoint point = device->mark_time();
    device->begin_copy_out(to, a.device_span()).finish();
    static_cast<void>(device->time_of(point));
    device->begin_work({"update", [](void*) {}, {}}, {}).finish();
    a.reset();
  }).join();
  EXPECT_FALSE(api->has_context(0)) << "copies and works";
  std::thread([this] { device.reset(); }).join();
  EXPECT_FALSE(api->has_context(0)) << "the device itself";
}

}  // namespace
}  // namespace sluice::offload
