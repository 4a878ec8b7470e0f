#pragma once
// The backends that make_backend chooses from. Private to the component.

#include <memory>

#include "sluice/nvme/io_backend.hpp"

namespace sluice::nvme {

std::unique_ptr<IoBackend> make_threads_backend(unsigned depth, unsigned io_threads);

// The others may be made only where they are available.

// Throws IoError, with advice, when the kernel refuses the ring.
std::unique_ptr<IoBackend> make_uring_backend(unsigned depth);
// Throws IoError, with advice, when the kernel refuses the context.
std::unique_ptr<IoBackend> make_libaio_backend(unsigned depth);

}  // namespace sluice::nvme
