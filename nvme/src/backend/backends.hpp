#pragma once
// The backends that make_backend() chooses from. Thread-safe: free functions without state.

#include <cstdint>
#include <memory>

#include "sluice/base/bytes.hpp"
#include "sluice/nvme/io_backend.hpp"

namespace sluice::nvme {

// The most requests that enter the kernel at once. A drive that gets its whole queue at once ends
// the queue at once: 4 KiB random reads at depth 64 are 7 % slower than in small batches.
constexpr unsigned kSubmitBatch = 8;

// A request of at least this size enters alone. The kernel merges neighbouring requests that enter
// together into one transfer of some MiB, whose parts a drive cannot overlap.
constexpr std::uint32_t kAloneBytes = 128 * kKiB;

std::unique_ptr<IoBackend> make_threads_backend(unsigned depth, unsigned io_threads);

// The two below: only where they are available.

// Throws IoError, with advice, when the kernel refuses the ring.
std::unique_ptr<IoBackend> make_uring_backend(unsigned depth, SubmitPolling polling);
// Throws IoError, with advice, when the kernel refuses the context.
std::unique_ptr<IoBackend> make_libaio_backend(unsigned depth);

}  // namespace sluice::nvme
