// The CUDA device on a GPU.

#include <gtest/gtest.h>

#include "device_conformance.hpp"
#include "sluice/offload/cuda_device.hpp"

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

}  // namespace sluice::offload::test
