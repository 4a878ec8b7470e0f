#pragma once
// The settings of an IoEngine: a plain value, checked by IoEngine's constructor. Thread-compatible:
// callers synchronise.

#include <cstdint>

#include "sluice/base/trace.hpp"

namespace sluice::nvme {

struct IoEngineOptions {
  std::uint32_t block_bytes = 256U
                              << 10U;  // a multiple of 4096 up to 1 GiB; DeepSpeed's aio.block_size
  unsigned depth = 32;  // blocks in flight on each drive, 1 to 4096; DeepSpeed's aio.queue_depth
  // Blocks read in a row while a write waits, 1 to 1024. The best value depends on the drive: some
  // drives read and write at once, others lose time at every change of direction.
  unsigned reads_per_write = 3;
  // Null, or a trace that outlives the engine. Rows "read" and "write" get every transfer, from its
  // begin_x to the completion of its last block.
  Trace* trace = nullptr;
};

}  // namespace sluice::nvme
