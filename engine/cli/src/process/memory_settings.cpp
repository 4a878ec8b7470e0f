#include "process/memory_settings.hpp"

#include <malloc.h>

namespace sluice::cli {

void bound_resident_memory() {
  // Every arena keeps freed memory of its own; by default there are eight for each core.
  constexpr int kArenas = 2;
  // Larger blocks are mapped, and go back to the system when freed. Setting it also stops glibc
  // from raising it (up to 32 MiB) after the first large free, which would keep freed tensors in
  // the heap.
  constexpr int kMapFromBytes = 256 * 1024;
  // Free memory at the end of the heap beyond this goes back.
  constexpr int kTrimFromBytes = 1024 * 1024;
  ::mallopt(M_ARENA_MAX, kArenas);
  ::mallopt(M_MMAP_THRESHOLD, kMapFromBytes);
  ::mallopt(M_TRIM_THRESHOLD, kTrimFromBytes);
}

}  // namespace sluice::cli
