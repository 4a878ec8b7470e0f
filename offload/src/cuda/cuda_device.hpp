#pragma once
// The functions of sluice/offload/cuda_device.hpp over any CudaApi: tests pass one of their own.
// Not installed. Thread-safe: free functions; GpuDevice as Device.

#include <memory>

#include "cuda/cuda_api.hpp"
#include "sluice/offload/cuda_device.hpp"

namespace sluice::offload::cuda {

class DriverApi;

// The device that make_device() makes; other classes of this component may call its runtime.
class GpuDevice : public Device {
 public:
  virtual const std::shared_ptr<CudaApi>& api() const = 0;  // shared with what it makes
  virtual int index() const = 0;
};

// The GPUs that the runtime shows, or why it shows none.
CudaDevices find_devices(CudaApi& api);
// Threads that wait for GPU `index` sleep, in place of spinning. Call it before the first work
// there; no effect afterwards. Throws CudaError where there is no such GPU.
void let_waits_sleep(CudaApi& api, int index);
// With page_bytes in the options, `driver` maps the memory.
std::unique_ptr<Device> make_device(std::shared_ptr<CudaApi> api, const CudaDeviceOptions& options,
                                    std::shared_ptr<DriverApi> driver = nullptr);

}  // namespace sluice::offload::cuda
