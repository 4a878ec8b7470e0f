#pragma once
// A GPU and cuFile that the tests bring, an I/O engine, and files whose content is known.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/cuda_device.hpp"
#include "cuda/cufile_reader.hpp"
#include "fake_cufile.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/nvme/bench_file.hpp"
#include "temp_dir.hpp"

namespace sluice::offload::test {

class CufileTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kDeviceBytes = 48 * kMiB;

  CufileTest() {
    EXPECT_EQ(gpu->stream_create(&compute, 0), cudaSuccess);
    made = cuda::make_device(gpu, {.memory_bytes = kDeviceBytes, .compute_stream = compute});
    device = dynamic_cast<cuda::GpuDevice*>(made.get());
  }
  ~CufileTest() override {
    reader.reset();
    made.reset();
    EXPECT_EQ(files->open_handles(), 0);
    EXPECT_EQ(files->open_drivers(), 0);
    EXPECT_EQ(gpu->stream_destroy(compute), cudaSuccess);
  }

  void start(cuda::CompatMode mode = cuda::CompatMode::refused) {
    reader = std::make_unique<cuda::CufileReader>(files, *device, mode);
  }
  static nvme::StripedFile one(nvme::SwapFile file) { return nvme::StripedFile(std::move(file)); }
  nvme::SwapFile open(const std::string& name) const {
    return {dir.file(name), nvme::OpenMode::create, nvme::DirectIo::on};
  }
  // Holds the pattern from `offset_bytes` on at every offset.
  nvme::StripedFile write(nvme::StripedFile file, std::uint64_t size_bytes) {
    file.allocate(size_bytes);
    for (std::uint64_t at = 0; at < size_bytes; at += kMiB) {
      const auto chunk = pattern.at(at, std::min<std::uint64_t>(kMiB, size_bytes - at));
      io.begin_write(file, at, chunk).finish();
    }
    return file;
  }
  // Whether device memory holds what a file has at this offset.
  bool holds(DeviceSpan memory, std::uint64_t offset_bytes) const {
    const std::byte* shown = gpu->as_device(memory.address());
    for (std::size_t at = 0; at < memory.size_bytes(); at += 4096) {
      const std::size_t size_bytes = std::min<std::size_t>(4096, memory.size_bytes() - at);
      const auto expected = pattern.at(offset_bytes + at, size_bytes);
      if (!std::equal(expected.begin(), expected.end(), shown + at)) return false;
    }
    return true;
  }
  Buffer buffer(std::size_t size_bytes) { return device->memory().allocate(size_bytes, "test"); }

  const std::shared_ptr<FakeCuda> gpu = std::make_shared<FakeCuda>();
  const std::shared_ptr<FakeCufile> files = std::make_shared<FakeCufile>(gpu);
  const sluice::test::TempDir dir;
  const nvme::BenchPattern pattern{kMiB};
  nvme::IoEngine io{nvme::make_backend(nvme::BackendKind::automatic, 32, 2).backend, {}};
  cudaStream_t compute = nullptr;
  std::unique_ptr<Device> made;
  cuda::GpuDevice* device = nullptr;
  std::unique_ptr<cuda::CufileReader> reader;
};

}  // namespace sluice::offload::test
