#pragma once
// MemoryUse: a range of memory that compute work or a copy reads or writes.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice::offload::test {

struct MemoryUse {
  const void* address = nullptr;
  std::size_t size_bytes = 0;
  bool writes = false;

  bool overlaps(const MemoryUse& other) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    const auto other_begin = reinterpret_cast<std::uintptr_t>(other.address);
    return begin < other_begin + other.size_bytes && other_begin < begin + size_bytes;
  }
  bool conflicts(const MemoryUse& other) const {
    return (writes || other.writes) && overlaps(other);
  }
};
using MemoryUses = std::vector<MemoryUse>;

}  // namespace sluice::offload::test
