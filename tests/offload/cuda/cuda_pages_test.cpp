// A GPU's memory in mapped pages, over FakeCuda and FakeDriver: found by trying, and unmapped only
// when the work that was issued has ended.

#include "cuda/pages/cuda_pages.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "cuda/cuda_device.hpp"
#include "fake_cuda.hpp"
#include "fake_driver.hpp"
#include "offload/device/device_conformance.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"

namespace sluice::offload {

using test::FakeCuda;
using test::FakeDriver;
using test::filled;
using test::Gate;
using testing::HasSubstr;

namespace test {
namespace {
// Both ends of the fakes, for as long as a device has them.
struct Fakes {
  FakeCuda cuda;
  FakeDriver driver{cuda};
};
}  // namespace

INSTANTIATE_TEST_SUITE_P(FakePages, DeviceConformance,
                         testing::Values(DeviceCase{
                             "cuda_pages",
                             [](std::uint64_t memory_bytes, std::string&) {
                               const auto fakes = std::make_shared<Fakes>();
                               return std::shared_ptr<Device>(
                                   cuda::make_device({fakes, &fakes->cuda},
                                                     {.memory_bytes = memory_bytes,
                                                      .page_bytes = FakeDriver::kPageBytes},
                                                     {fakes, &fakes->driver}));
                             }}),
                         name_of_case);
}  // namespace test

namespace {

constexpr std::size_t kPage = FakeDriver::kPageBytes;

class CudaPagesTest : public testing::Test {
 protected:
  CudaPagesTest() { EXPECT_EQ(api->stream_create(&compute, 0), cudaSuccess); }
  ~CudaPagesTest() override { static_cast<void>(api->stream_destroy(compute)); }
  CudaPages find() { return cuda::find_pages({api, driver, 0, nullptr, nullptr}); }
  std::unique_ptr<Device> make(std::size_t pages) {
    return cuda::make_device(
        api, {.memory_bytes = pages * kPage, .page_bytes = kPage, .compute_stream = compute},
        driver);
  }
  void expect_nothing_left() {
    EXPECT_EQ(driver->pages_in_use(), 0U);
    EXPECT_EQ(driver->reservations(), 0U);
  }

  const std::shared_ptr<FakeCuda> api = std::make_shared<FakeCuda>();
  const std::shared_ptr<FakeDriver> driver = std::make_shared<FakeDriver>(*api);
  cudaStream_t compute = nullptr;
};

TEST_F(CudaPagesTest, AreFoundByTryingTwo) {
  const CudaPages found = find();
  EXPECT_EQ(found.page_bytes, kPage);
  EXPECT_EQ(found.why_not, "");
  expect_nothing_left();
}

TEST_F(CudaPagesTest, AreNotUsedWhereACallFails) {
  for (const char* call :
       {"mem_get_granularity", "mem_create", "mem_address_reserve", "mem_map", "mem_set_access"}) {
    driver->fail(call, 1);
    const CudaPages found = find();
    EXPECT_EQ(found.page_bytes, 0U) << call;
    EXPECT_THAT(found.why_not, HasSubstr(call));
    expect_nothing_left();
  }
  driver->fail("mem_map", 4);  // when the pages are mapped again
  EXPECT_EQ(find().page_bytes, 0U);
  expect_nothing_left();
}

TEST_F(CudaPagesTest, AreNotUsedWhereOtherBytesComeBack) {
  // The first mapping is right, the second is not.
  struct Liar final : cuda::DriverApi {
    explicit Liar(FakeDriver& to) : honest(to) {}
    std::string error_name(CUresult e) override { return honest.error_name(e); }
    std::string error_text(CUresult e) override { return honest.error_text(e); }
    cuda::DriverResult mem_get_granularity(std::size_t* bytes, int device) override {
      return honest.mem_get_granularity(bytes, device);
    }
    cuda::DriverResult mem_create(CUmemGenericAllocationHandle* page, std::size_t size_bytes,
                                  int device) override {
      return honest.mem_create(page, size_bytes, device);
    }
    cuda::DriverResult mem_release(CUmemGenericAllocationHandle page) override {
      return honest.mem_release(page);
    }
    cuda::DriverResult mem_address_reserve(CUdeviceptr* begin, std::size_t size_bytes) override {
      return honest.mem_address_reserve(begin, size_bytes);
    }
    cuda::DriverResult mem_address_free(CUdeviceptr begin, std::size_t size_bytes) override {
      return honest.mem_address_free(begin, size_bytes);
    }
    cuda::DriverResult mem_map(CUdeviceptr begin, std::size_t size_bytes,
                               CUmemGenericAllocationHandle page) override {
      return honest.mem_map(begin, size_bytes, page);
    }
    cuda::DriverResult mem_unmap(CUdeviceptr begin, std::size_t size_bytes) override {
      honest.lies = true;
      return honest.mem_unmap(begin, size_bytes);
    }
    cuda::DriverResult mem_set_access(CUdeviceptr begin, std::size_t size_bytes,
                                      int device) override {
      return honest.mem_set_access(begin, size_bytes, device);
    }
    FakeDriver& honest;
  };
  const CudaPages found =
      cuda::find_pages({api, std::make_shared<Liar>(*driver), 0, nullptr, nullptr});
  EXPECT_EQ(found.page_bytes, 0U);
  EXPECT_EQ(found.why_not, "mapped pages return other bytes than were written");
  expect_nothing_left();
}

// A kernel of the compute stream writes a block after it was freed, as LibTorch's do. Unmapped
// before that, the block crashes this test.
TEST_F(CudaPagesTest, AreUnmappedOnlyWhenTheWorkThatWasIssuedHasEnded) {
  auto device = make(8);
  Gate gate;
  {
    const Buffer freed = device->memory().allocate(5 * kPage, "used by a kernel that runs late");
    api->launch(compute, [this, at = freed.device_span().address(), wait = gate.waiter()] {
      wait();
      std::memset(api->as_device(at), 1, 5 * kPage);
    });
  }
  EXPECT_EQ(driver->calls("mem_unmap"), 0);
  std::thread opens([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(driver->calls("mem_unmap"), 0) << "the kernel has not run";
    gate.open();
  });
  Buffer needed = device->memory().allocate(7 * kPage, "takes its pages");
  EXPECT_EQ(driver->calls("mem_unmap"), 1);
  opens.join();
  const auto from = filled(7 * kPage, 9);
  device->begin_copy_in(needed.device_span(), from).finish();
  auto to = filled(7 * kPage, 0);
  device->begin_copy_out(to, needed.device_span()).finish();
  EXPECT_EQ(to, from);
  needed.reset();
  device.reset();
  expect_nothing_left();
}

TEST_F(CudaPagesTest, AFailedMappingLosesNoPage) {
  auto device = make(8);
  driver->fail("mem_map", 3);
  EXPECT_THROW(device->memory().allocate(4 * kPage, "a block"), CudaError);
  EXPECT_EQ(device->memory().usage().live_bytes, 0U);
  Buffer all = device->memory().allocate(8 * kPage, "all of it");
  all.reset();
  device.reset();
  expect_nothing_left();
}

TEST_F(CudaPagesTest, MemoryThatTheGpuHasNotIsOutOfMemory) {
  const std::size_t too_many = FakeCuda::kMemoryBytes / kPage + 1;
  EXPECT_THROW(make(too_many), OutOfMemory);
  expect_nothing_left();
}

}  // namespace
}  // namespace sluice::offload
