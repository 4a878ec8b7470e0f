#pragma once
// Counts the memory that a piece of work takes from malloc and operator new, of all threads.
//
// Confined to one thread: one count at a time.

#include <cstddef>

namespace sluice::fuzz {

struct Allocations {
  std::size_t largest_bytes = 0;  // of one allocation
  std::size_t peak_bytes = 0;     // held at once, beyond what was held at the start
};

// False under a sanitizer, which has a malloc of its own: the counts are 0 then.
bool counts_allocations();
void begin_counting_allocations();
Allocations end_counting_allocations();

}  // namespace sluice::fuzz
