#pragma once
// The backends that make_backend chooses from. Private to the component.

#include <memory>
#include <string>

#include "sluice/nvme/io_backend.hpp"

namespace sluice::nvme {

std::unique_ptr<IoBackend> make_threads_backend(unsigned depth, unsigned io_threads);

#if SLUICE_HAVE_URING
// Throws IoError, with advice, when the kernel refuses the ring.
std::unique_ptr<IoBackend> make_uring_backend(unsigned depth);
// Sets a ring up and does a no-op on it; false and `why` when that fails.
bool probe_uring(std::string& why);
#endif

}  // namespace sluice::nvme
