#pragma once
// Settings of the C library's allocator that hold resident memory near the plan's figure.

namespace sluice::cli {

// Call it first in main, before any thread exists and before any large allocation.
void bound_resident_memory();

}  // namespace sluice::cli
