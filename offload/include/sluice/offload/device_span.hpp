#pragma once
// DeviceSpan: a range of a device's memory. It is not a std::span: the CPU cannot read or write
// through it, and neither type converts to the other. So a call that takes host and device memory
// does not compile with the two swapped. Host memory is std::span<std::byte> everywhere.
//
// Device::host_view() is the one way from a DeviceSpan to memory of the host; it checks that the
// device is host_addressable().
//
// A value that owns nothing. Thread-safe: all members are const.

#include <cassert>
#include <cstddef>
#include <cstdint>

namespace sluice::offload {

class DeviceSpan {
 public:
  constexpr DeviceSpan() = default;
  // `address`: of the device's memory, valid there for `size_bytes`. Explicit: braces around a host
  // pointer make no DeviceSpan.
  constexpr explicit DeviceSpan(void* address, std::size_t size_bytes)
      : address_(address), size_bytes_(size_bytes) {}

  // For calls that run on the device: the CUDA runtime, cuFile, LibTorch's from_blob.
  constexpr void* address() const { return address_; }
  constexpr std::size_t size_bytes() const { return size_bytes_; }
  constexpr bool empty() const { return size_bytes_ == 0; }

  // Parts, as those of a std::span; the part lies inside the span.
  DeviceSpan subspan(std::size_t offset_bytes, std::size_t part_bytes) const {
    assert(offset_bytes <= size_bytes_ && part_bytes <= size_bytes_ - offset_bytes);
    return DeviceSpan(address_at(offset_bytes), part_bytes);
  }
  DeviceSpan subspan(std::size_t offset_bytes) const {
    assert(offset_bytes <= size_bytes_);
    return DeviceSpan(address_at(offset_bytes), size_bytes_ - offset_bytes);
  }
  DeviceSpan first(std::size_t part_bytes) const { return subspan(0, part_bytes); }

  // Whether both are the same range.
  friend constexpr bool operator==(const DeviceSpan&, const DeviceSpan&) = default;

 private:
  void* address_at(std::size_t offset_bytes) const {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the address belongs to no object of this program
    return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(address_) + offset_bytes);
  }

  void* address_ = nullptr;
  std::size_t size_bytes_ = 0;
};

}  // namespace sluice::offload
