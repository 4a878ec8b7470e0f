#include "process/memory_settings.hpp"

#include <malloc.h>

namespace sluice::cli {

void bound_resident_memory() {
  // Larger blocks are mapped, and return to the system when freed. Setting the threshold also stops
  // glibc from raising the threshold (up to 32 MiB) after the first large free. A raised threshold
  // would retain freed tensors in the heap.
  constexpr int kMapFromBytes = 256 * 1024;
  // Free memory beyond this size at the end of the heap returns to the system.
  constexpr int kTrimFromBytes = 1024 * 1024;
  ::mallopt(M_MMAP_THRESHOLD, kMapFromBytes);
  ::mallopt(M_TRIM_THRESHOLD, kTrimFromBytes);
}

}  // namespace sluice::cli
