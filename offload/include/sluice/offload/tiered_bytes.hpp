#pragma once
// TieredBytes: a run of bytes with a fixed home on one tier, memory or a range of a file. A handle:
// bytes that are not in memory cannot be touched, only fetched (sluice/offload/mover.hpp).
//
// Thread-compatible: callers synchronise; the bytes themselves belong to whoever holds the handle's
// owner.

#include <cstdint>
#include <span>

#include "sluice/nvme/striped_file.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "sluice/offload/tier.hpp"

namespace sluice::offload {

// A range of an open file; the file outlives it.
struct FileRange {
  const nvme::StripedFile* file = nullptr;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;

  // The part [offset, offset + size); throws InvalidArgument when it is not inside.
  FileRange part(std::uint64_t part_offset_bytes, std::uint64_t part_size_bytes) const;
};

class TieredBytes {
 public:
  TieredBytes() = default;
  // Owns the buffer; the tier is its pool's.
  TieredBytes(Tier tier, Buffer buffer);
  explicit TieredBytes(FileRange range);
  // Memory that someone else owns, who outlives the handle.
  TieredBytes(Tier tier, std::span<std::byte> borrowed);

  Tier tier() const { return tier_; }
  std::uint64_t size_bytes() const { return size_bytes_; }
  bool in_memory() const { return tier_ != Tier::nvme; }
  // The bytes; only where in_memory() (throws InvalidArgument otherwise). On a device that is not
  // host addressable, a device address.
  std::span<std::byte> memory() const;
  // The range; only on Tier::nvme (throws InvalidArgument otherwise).
  const FileRange& range() const;

 private:
  Tier tier_ = Tier::host;
  std::uint64_t size_bytes_ = 0;
  Buffer buffer_;
  std::span<std::byte> borrowed_;
  FileRange range_;
};

}  // namespace sluice::offload
