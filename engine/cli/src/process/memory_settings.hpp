#pragma once
// Settings of the C library's allocator that keep resident memory near what the plan says.

namespace sluice::cli {

// To be called first in main, before any thread exists and before anything large is allocated.
void bound_resident_memory();

}  // namespace sluice::cli
