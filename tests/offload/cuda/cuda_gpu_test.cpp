// The CUDA device on a GPU, and GPUDirect Storage there.

#include <gtest/gtest.h>

#include <iostream>

#include "offload/device/device_conformance.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/offload/cuda_device.hpp"
#include "sluice/offload/direct_storage.hpp"
#include "sluice/offload/scratch_file.hpp"
#include "sluice/offload/swap_store.hpp"
#include "temp_dir.hpp"

namespace sluice::offload::test {

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceConformance,
                         testing::Values(DeviceCase{
                             "cuda",
                             [](std::uint64_t memory_bytes,
                                std::string& why_not) -> std::shared_ptr<Device> {
                               const CudaDevices found = find_cuda_devices();
                               why_not = "needs an NVIDIA GPU: " + found.why_none;
                               if (found.devices.empty()) return nullptr;
                               return make_cuda_device({.memory_bytes = memory_bytes});
                             }}),
                         name_of_case);

// Either is right: it depends on the machine. Where it is used, it must read.
TEST(DirectStorage, IsProbedAndReadsWhereItIsUsed) {
  const CudaDevices found = find_cuda_devices();
  if (found.devices.empty()) GTEST_SKIP() << "needs an NVIDIA GPU: " << found.why_none;
  constexpr std::uint64_t kFileBytes = 64 * kMiB;
  const auto device = make_cuda_device({.memory_bytes = 2 * kFileBytes});
  MemoryPool staging(Tier::pinned, kUnlimited, device->make_pinned_source());
  nvme::IoEngine io(nvme::make_backend(nvme::BackendKind::automatic, 32, 2).backend, {});
  const sluice::test::TempDir dir;
  // An odd size: its last bytes go through tiles.
  constexpr std::uint64_t kSizeBytes = 10 * kMiB + 777;
  ScratchFile file(dir.path(), "test", kSizeBytes, nvme::DirectIo::automatic);  // outlives a reader
  const DirectStorage probed =
      probe_direct_storage(*device, io, staging, {}, dir.path(), {.file_bytes = kFileBytes});
  std::cout << probed.line << "\n";
  EXPECT_NE(probed.line, "");
  EXPECT_TRUE(probed.bytes_right);
  if (probed.reader == nullptr) return;

  std::vector<std::byte> content(kSizeBytes);
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<std::byte>(i * i >> 7U);
  const FileRange range = file.take(kSizeBytes);
  io.begin_write(*range.file, range.offset_bytes, content).finish();
  Mover mover(*device, &io, &staging, {.direct = probed.reader.get()});
  const Buffer to = device->memory().allocate(kSizeBytes, "test");
  mover.begin_fetch(TieredBytes(range), to.device_span()).finish();
  std::vector<std::byte> back(kSizeBytes);
  device->begin_copy_out(back, to.device_span()).finish();
  EXPECT_EQ(back, content);
}

}  // namespace sluice::offload::test
