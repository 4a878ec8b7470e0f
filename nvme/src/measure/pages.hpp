#pragma once
// Memory for transfers, aligned to huge pages, so that the kernel describes a block to the drive in
// few segments. Thread-safe: a free function without state.

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"

namespace sluice::nvme {

struct FreePages {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Pages = std::unique_ptr<std::byte, FreePages>;

// Memory of `size_bytes`, at least 1, rounded up to huge pages; the caller owns it. Throws
// OutOfMemory.
inline Pages make_pages(std::uint64_t size_bytes, const char* what_for) {
  constexpr std::uint64_t kHugePageBytes = 2 * kMiB;
  const std::uint64_t whole = align_up(size_bytes, kHugePageBytes);
  Pages pages(static_cast<std::byte*>(std::aligned_alloc(kHugePageBytes, whole)));
  if (!pages) throw OutOfMemory("host", whole, 0, what_for);
  // Only advice: a refusal changes nothing else.
  ::madvise(pages.get(), whole, MADV_HUGEPAGE);
  return pages;
}

}  // namespace sluice::nvme
