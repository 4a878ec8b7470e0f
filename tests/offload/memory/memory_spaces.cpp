// Compiled by the tests memory_spaces_*: host and device memory that are swapped must not compile.

#include <cstddef>
#include <span>

#include "sluice/offload/device.hpp"
#include "sluice/offload/mover.hpp"

using sluice::offload::ComputePoint;
using sluice::offload::DeviceSpan;

void copies(sluice::offload::Device& device, std::span<std::byte> host, DeviceSpan memory) {
#if defined(COPY_IN_SWAPPED)
  device.begin_copy_in(host, memory);
#elif defined(COPY_IN_AFTER_SWAPPED)
  device.begin_copy_in(host, memory, ComputePoint());
#elif defined(COPY_OUT_SWAPPED)
  device.begin_copy_out(memory, host);
#elif defined(COPY_WITHIN_OF_HOST)
  device.begin_copy_within(memory, host);
#else
  device.begin_copy_in(memory, host).finish();
  device.begin_copy_in(memory, host, ComputePoint()).finish();
  device.begin_copy_out(host, memory).finish();
  device.begin_copy_within(memory, memory).finish();
#endif
}

void fetches(sluice::offload::Mover& mover, const sluice::offload::TieredBytes& home,
             std::span<std::byte> host, DeviceSpan memory) {
#if defined(FETCH_TO_HOST)
  mover.begin_fetch(home, host).finish();
#else
  mover.begin_fetch(home, host.empty() ? DeviceSpan() : memory).finish();
#endif
}

// Neither becomes the other on its way, not even from a pointer and a size in braces.
DeviceSpan as_device([[maybe_unused]] std::span<std::byte> host, DeviceSpan memory) {
#if defined(HOST_BECOMES_DEVICE)
  return host;
#elif defined(POINTER_BECOMES_DEVICE)
  return {host.data(), host.size()};
#else
  return memory;
#endif
}

std::span<std::byte> as_host(std::span<std::byte> host, [[maybe_unused]] DeviceSpan memory) {
#if defined(DEVICE_BECOMES_HOST)
  return memory;
#else
  return host;
#endif
}
