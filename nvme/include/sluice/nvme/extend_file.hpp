#pragma once
// Growth of a file that several owners write at once, in one process or in several, each through a
// SwapFile of its own. Thread-safe for any number of SwapFiles of one file.

#include <cstdint>

#include "sluice/nvme/file.hpp"

namespace sluice::nvme {

// Makes the file at least `end_bytes` long, with blocks allocated. Never shortens it, unlike
// SwapFile::allocate(): bytes that another owner has written meanwhile stay. [begin_bytes,
// end_bytes) is the caller's own range; only there are zeros written where there is no fallocate.
// Blocks. Throws IoError; on ENOSPC with needed and free bytes, and the file may then have become
// longer.
void extend_file(const SwapFile& file, std::uint64_t begin_bytes, std::uint64_t end_bytes);

}  // namespace sluice::nvme
