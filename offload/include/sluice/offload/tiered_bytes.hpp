#pragma once
// TieredBytes: a run of bytes with a fixed home on one tier: host memory, device memory or a range
// of a file. Bytes in a file cannot be accessed, only fetched (sluice/offload/mover.hpp).
//
// Thread-compatible: callers synchronise. The owner of the handle decides who may access the bytes.

#include <cstdint>
#include <span>

#include "sluice/nvme/striped_file.hpp"
#include "sluice/offload/device_span.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "sluice/offload/tier.hpp"

namespace sluice::offload {

class Device;

// A range of an open file; the file outlives it. Ranges that are written at one time must not share
// a block of the file (offset_alignment()): begin each at a multiple of it.
struct FileRange {
  const nvme::StripedFile* file = nullptr;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;

  // The part [offset, offset + size). Throws InvalidArgument unless it lies inside the range.
  FileRange part(std::uint64_t part_offset_bytes, std::uint64_t part_size_bytes) const;
};

class TieredBytes {
 public:
  TieredBytes() = default;
  // Owns the buffer. `tier`: the tier of the buffer's pool.
  TieredBytes(Tier tier, Buffer buffer);
  explicit TieredBytes(FileRange range);
  // Memory with another owner, which outlives the handle: of the host (`tier` is host or pinned) or
  // of the device.
  TieredBytes(Tier tier, std::span<std::byte> borrowed);
  explicit TieredBytes(DeviceSpan borrowed);

  Tier tier() const { return tier_; }
  std::uint64_t size_bytes() const { return size_bytes_; }
  bool in_memory() const { return tier_ != Tier::nvme; }
  // The bytes, by tier. Each throws InvalidArgument on any other tier.
  std::span<std::byte> host_memory() const;  // Tier::host and Tier::pinned
  DeviceSpan device_memory() const;          // Tier::device
  const FileRange& range() const;            // Tier::nvme
  // Bytes that the CPU can address: host_memory(), or device_memory() through Device::host_view().
  // Throws InvalidArgument on Tier::nvme, and on Tier::device unless the device is
  // host_addressable().
  std::span<std::byte> host_view(const Device& device) const;

 private:
  Tier tier_ = Tier::host;
  std::uint64_t size_bytes_ = 0;
  Buffer buffer_;
  std::span<std::byte> borrowed_;
  DeviceSpan borrowed_on_device_;
  FileRange range_;
};

}  // namespace sluice::offload
