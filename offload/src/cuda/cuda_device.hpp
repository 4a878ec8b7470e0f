#pragma once
// The functions of sluice/offload/cuda_device.hpp over any CudaApi: tests pass one of their own.
// Not installed.

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

CudaDevices find_devices(CudaApi& api);
void let_waits_sleep(CudaApi& api, int index);
std::unique_ptr<DeviceStream> make_stream(GpuDevice& device);
// With page_bytes in the options, `driver` maps the memory.
std::unique_ptr<Device> make_device(std::shared_ptr<CudaApi> api, const CudaDeviceOptions& options,
                                    std::shared_ptr<DriverApi> driver = nullptr);

}  // namespace sluice::offload::cuda
