#pragma once
// Forks of this process. A forked child has the memory of its parent, but none of its threads: an
// engine or an executor made before the fork never answers there. Thread-safe: free functions.

#include <cstdint>

namespace sluice::python {

// Starts counting forks. Called once, when the module is loaded.
void count_forks();
// Forks between count_forks() and this process. Equal values mean: the same process.
std::uint64_t fork_count() noexcept;

}  // namespace sluice::python
