#pragma once
// The functions of sluice/offload/cuda_device.hpp over any CudaApi, so that tests bring their own.
// Not installed.

#include <memory>

#include "cuda_api.hpp"
#include "sluice/offload/cuda_device.hpp"

namespace sluice::offload::cuda {

CudaDevices find_devices(CudaApi& api);
std::unique_ptr<Device> make_device(std::shared_ptr<CudaApi> api, const CudaDeviceOptions& options);

}  // namespace sluice::offload::cuda
