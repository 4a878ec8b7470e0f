// sluice/offload/cuda_device.hpp in a build without CUDA's headers.

#include "sluice/base/error.hpp"
#include "sluice/offload/cuda_device.hpp"

namespace sluice::offload {

namespace {
constexpr const char* kWhyNone = "this was built without CUDA (SLUICE_WITH_CUDA)";
}  // namespace

CudaDevices find_cuda_devices() {
  return {{}, kWhyNone};
}

std::uint64_t cuda_free_bytes(int) {
  throw InvalidArgument(kWhyNone);
}

CudaPages find_cuda_pages(int) {
  return {0, kWhyNone};
}

void let_cuda_waits_sleep(int) {
  throw InvalidArgument(kWhyNone);
}

std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions&) {
  throw InvalidArgument(kWhyNone);
}

std::unique_ptr<DeviceStream> make_device_stream(Device&) {
  throw InvalidArgument(kWhyNone);
}

}  // namespace sluice::offload
