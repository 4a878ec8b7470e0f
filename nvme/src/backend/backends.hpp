#pragma once
// The backends that make_backend chooses from. Private to the component.

#include <cstdint>
#include <memory>

#include "sluice/base/bytes.hpp"
#include "sluice/nvme/io_backend.hpp"

namespace sluice::nvme {

// So many requests at most enter the kernel at once. A drive that gets its whole queue in one go
// ends it in one go: of 4 KiB random reads at depth 64, 7 % fewer a second than in small batches.
constexpr unsigned kSubmitBatch = 8;

// A request of so many bytes enters alone. Of neighbours that come together the kernel makes one
// transfer of some MiB, which a drive does as a whole, while several would overlap.
constexpr std::uint32_t kAloneBytes = 128 * kKiB;

std::unique_ptr<IoBackend> make_threads_backend(unsigned depth, unsigned io_threads);

// The others may be made only where they are available.

// Throws IoError, with advice, when the kernel refuses the ring.
std::unique_ptr<IoBackend> make_uring_backend(unsigned depth, SubmitPolling polling);
// Throws IoError, with advice, when the kernel refuses the context.
std::unique_ptr<IoBackend> make_libaio_backend(unsigned depth);

}  // namespace sluice::nvme
