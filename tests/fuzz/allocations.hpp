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

void begin_counting_allocations();
// 0 under a sanitizer, which has a malloc of its own.
Allocations end_counting_allocations();

}  // namespace sluice::fuzz
