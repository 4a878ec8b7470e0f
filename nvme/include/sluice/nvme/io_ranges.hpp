#pragma once
// Ranges of a file and the memory that their bytes come from or go to. They own nothing.
// Thread-compatible: callers synchronise.

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::nvme {

// One of several ranges of a file that move together.
struct ReadRange {
  std::uint64_t offset_bytes = 0;
  std::span<std::byte> data;
};
struct WriteRange {
  std::uint64_t offset_bytes = 0;
  std::span<const std::byte> data;
};

}  // namespace sluice::nvme
