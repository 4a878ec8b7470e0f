#pragma once
// Reads committed shards and compares their checksums.
// Thread-safe: a free function without state.

#include <span>
#include <vector>

#include "sluice/nvme/io_engine.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "sluice/offload/swap_store.hpp"

namespace sluice::offload {

struct StoredShard {
  const ShardSpec* spec = nullptr;
  const nvme::SwapFile* file = nullptr;
  std::uint64_t file_offset_bytes = 0;
  std::span<const std::uint64_t> checksums;
};

// Blocks. Reads with several chunks in flight, through buffers of `staging`; a chunk that cannot be
// read is damaged, and why is logged. Throws OutOfMemory when not even one chunk's buffer can be
// had.
std::vector<DamagedChunk> find_damaged_chunks(std::span<const StoredShard> shards,
                                              nvme::IoEngine& io, MemoryPool& staging);

}  // namespace sluice::offload
