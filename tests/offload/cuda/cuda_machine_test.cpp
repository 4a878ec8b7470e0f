// The GPUs of a machine and host memory that is registered with one, over FakeCuda.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cuda/cuda_device.hpp"
#include "cuda/cuda_memory.hpp"
#include "fake_cuda.hpp"
#include "in_child.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"

namespace sluice::offload {

using test::FakeCuda;
using test::message_of;
using testing::HasSubstr;

namespace {

TEST(FindCudaDevices, SaysWhatIsThere) {
  FakeCuda api;
  api.device_count = 2;
  const CudaDevices found = cuda::find_devices(api);
  ASSERT_EQ(found.devices.size(), 2U);
  EXPECT_EQ(found.devices[1].name, "Fake GPU");
  EXPECT_EQ(found.devices[1].bus_id, "0000:1b:00.0");
  EXPECT_EQ(found.devices[1].major, 9);
  EXPECT_EQ(found.devices[1].total_bytes, FakeCuda::kMemoryBytes);
  EXPECT_EQ(found.why_none, "");
}

TEST(FindCudaDevices, SaysThatTheDriverIsMissingOrTooOld) {
  FakeCuda api;
  api.driver_version = 0;
  api.count_error = cudaErrorNoDevice;
  EXPECT_THAT(cuda::find_devices(api).why_none, HasSubstr("no NVIDIA driver is loaded"));
  api.driver_version = 12040;
  api.count_error = cudaErrorInsufficientDriver;
  EXPECT_THAT(cuda::find_devices(api).why_none,
              HasSubstr("is for CUDA 12.4, this needs CUDA 13.0; update the driver"));
}

TEST(FindCudaDevices, SaysThatAGpuDoesNotAnswer) {
  FakeCuda api;
  api.device_count = 2;
  api.fail("get_device_properties", 2, cudaErrorUnknown);
  const CudaDevices found = cuda::find_devices(api);
  EXPECT_TRUE(found.devices.empty());
  EXPECT_TRUE(found.fails);
  EXPECT_THAT(found.why_none, HasSubstr("looking at the GPU: get_device_properties"));
  EXPECT_EQ(FakeCuda::last_error(), cudaSuccess);  // else LibTorch's next check reports it
}

TEST(FindCudaDevices, NamesTheVariableThatHidesThem) {
  FakeCuda api;
  api.device_count = 0;
  ::setenv("CUDA_VISIBLE_DEVICES", "7", 1);
  const std::string why = cuda::find_devices(api).why_none;
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_THAT(why, HasSubstr("CUDA_VISIBLE_DEVICES is \"7\", which leaves no GPU"));
  EXPECT_THAT(cuda::find_devices(api).why_none, HasSubstr("the CUDA runtime finds no GPU"));
}

// Schedulers and launchers set the variable everywhere, also where it hides nothing.
TEST(FindCudaDevices, NamesAFailureByItsOwnNameWhateverTheVariableIs) {
  FakeCuda api;
  for (const cudaError_t error : {cudaErrorSystemNotReady, cudaErrorSystemDriverMismatch,
                                  cudaErrorInitializationError, cudaErrorUnknown}) {
    api.count_error = error;
    ::setenv("CUDA_VISIBLE_DEVICES", "0,1", 1);
    const CudaDevices found = cuda::find_devices(api);
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    EXPECT_EQ(found.why_none,
              "the NVIDIA driver is there, and the CUDA runtime fails: a fault of the test (" +
                  api.error_name(error) + ")");
    EXPECT_TRUE(found.fails);
  }
}

TEST(FindCudaDevices, TellsAMachineWithoutAGpuFromOneThatFails) {
  FakeCuda api;
  EXPECT_FALSE(cuda::find_devices(api).fails);
  for (const cudaError_t error :
       {cudaErrorNoDevice, cudaErrorInsufficientDriver, cudaErrorStubLibrary}) {
    api.count_error = error;
    EXPECT_FALSE(cuda::find_devices(api).fails) << error;
  }
  api.count_error = cudaErrorSystemNotReady;
  api.driver_version = 0;
  EXPECT_FALSE(cuda::find_devices(api).fails);
}

TEST(RegisteredSource, RegistersWhatItHandsOut) {
  const auto api = std::make_shared<FakeCuda>();
  const auto source = cuda::make_registered_source(api, 0);
  void* block = source->allocate(kPageBytes);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(api->registered_blocks(), 1U);
  source->free(block, kPageBytes);
  EXPECT_EQ(api->registered_blocks(), 0U);
}

// The GPU's driver pins the memory, beside RLIMIT_MEMLOCK.
TEST(RegisteredSource, NeedsNoRightToLock) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to give up a capability";
  const std::string said = ::sluice::test::run_in_child([] {
    ::sluice::test::limit_locked_memory(64 * kKiB);
    const auto api = std::make_shared<FakeCuda>();
    const auto source = cuda::make_registered_source(api, 0);
    void* block = source->allocate(128 * kKiB);
    const bool registered = block != nullptr && api->registered_blocks() == 1;
    source->free(block, 128 * kKiB);
    return std::string(registered ? "registered" : "refused");
  });
  EXPECT_EQ(said, "registered");
}

TEST(RegisteredSource, HandsNothingOutThatIsNotRegistered) {
  const auto api = std::make_shared<FakeCuda>();
  const auto source = cuda::make_registered_source(api, 0);
  api->fail("host_register", 1, cudaErrorMemoryAllocation);
  EXPECT_EQ(source->allocate(kPageBytes), nullptr);
  api->fail("host_register", 1, cudaErrorOperatingSystem);
  EXPECT_THAT(message_of([&] { source->allocate(kPageBytes); }),
              HasSubstr("registering 4.00 KiB of host memory: host_register"));
  EXPECT_EQ(api->registered_blocks(), 0U);
}

}  // namespace
}  // namespace sluice::offload
