#pragma once
// Settings of the C library's allocator that hold resident memory near the plan's figure.
//
// The number of arenas stays as it is. Operators allocate scratch memory on each thread, so threads
// that share an arena wait for each other (docs/decisions/0001-first-slice.md has figures).

namespace sluice::cli {

// Call it first in main, before any thread exists and before any large allocation.
void bound_resident_memory();

}  // namespace sluice::cli
