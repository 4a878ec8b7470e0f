#pragma once
// The settings of an IoEngine: a plain value, checked by its constructor.

#include <cstdint>

#include "sluice/base/trace.hpp"

namespace sluice::nvme {

struct IoEngineOptions {
  std::uint32_t block_bytes = 256U << 10U;  // a multiple of 4096; DeepSpeed's aio.block_size
  unsigned depth = 32;  // blocks in flight on each drive, 1 to 4096; DeepSpeed's aio.queue_depth
  // Blocks read in a row while a write waits, 1 to 1024. What is best is the drive's: some do both
  // at once, others lose time at every turn.
  unsigned reads_per_write = 3;
  // Rows "read" and "write": every transfer from its begin_x until its last block has come back.
  Trace* trace = nullptr;
};

}  // namespace sluice::nvme
