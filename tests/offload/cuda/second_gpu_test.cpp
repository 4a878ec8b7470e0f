// A device that is not the first GPU, over FakeCuda: a new thread's GPU is the first.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "cuda/cuda_device.hpp"
#include "fake_cuda.hpp"
#include "offload/device/device_conformance.hpp"

namespace sluice::offload {

using test::FakeCuda;
using test::filled;
using test::message_of;

namespace {

class SecondGpu : public testing::Test {
 protected:
  static constexpr std::size_t kBytes = 10000;

  SecondGpu() {
    api->device_count = 2;
    EXPECT_EQ(api->set_device(1), cudaSuccess);
    EXPECT_EQ(api->stream_create(&compute, 0), cudaSuccess);
    device =
        cuda::make_device(api, {.index = 1, .memory_bytes = 1U << 20U, .compute_stream = compute});
  }
  ~SecondGpu() override {
    device.reset();
    EXPECT_EQ(api->stream_destroy(compute), cudaSuccess);
    EXPECT_EQ(api->set_device(0), cudaSuccess);
  }

  const std::shared_ptr<FakeCuda> api = std::make_shared<FakeCuda>();
  cudaStream_t compute = nullptr;
  std::unique_ptr<Device> device;
};

// As the thread of updates does for a unit that is wholly on the GPU.
TEST_F(SecondGpu, RunsTheFirstWorkOfAThreadThatUsedNoGpuBefore) {
  std::thread([this] {
    Ticket work = device->begin_work({"update", [](void*) {}, {}}, {});
    EXPECT_EQ(message_of([&] { work.finish(); }), "");
  }).join();
}

TEST_F(SecondGpu, CopiesFromAThreadThatUsedNoGpuBefore) {
  std::thread([this] {
    const Buffer a = device->memory().allocate(kBytes, "a");
    const auto from = filled(kBytes, 3);
    auto to = filled(kBytes, 0);
    device->begin_copy_in(a.device_span(), from).finish();
    device->begin_copy_out(to, a.device_span(), {}).finish();
    EXPECT_EQ(to, from);
  }).join();
}

}  // namespace
}  // namespace sluice::offload
