#include "sluice/offload/device.hpp"

#include <string>

#include "sluice/base/error.hpp"

namespace sluice::offload {

std::span<std::byte> Device::host_view(DeviceSpan memory) const {
  SLUICE_CHECK(host_addressable(), "the CPU cannot address the memory of device " +
                                       std::string(name()) + ": copy the bytes to host memory");
  return {static_cast<std::byte*>(memory.address()), memory.size_bytes()};
}

}  // namespace sluice::offload
