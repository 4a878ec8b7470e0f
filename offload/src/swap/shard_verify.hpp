#pragma once
// Reads committed shards and compares their checksums.
// Thread-safe: a free function without state.

#include <span>
#include <string>
#include <vector>

#include "sluice/nvme/io_engine.hpp"
#include "sluice/nvme/striped_file.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "sluice/offload/swap_state.hpp"
#include "swap/shard_slots.hpp"

namespace sluice::offload {

struct StoredShard {
  const ShardSpec* spec = nullptr;
  const nvme::StripedFile* file = nullptr;  // null only where nothing is readable
  std::string path;
  std::uint64_t file_offset_bytes = 0;
  // Whole chunks that the file can hold, or everything; what lies behind them is damaged, and why.
  std::uint64_t readable_bytes = 0;
  std::string why_cut_off;
  std::span<const std::uint64_t> checksums;
};

std::uint64_t readable_bytes_of(std::span<const StoredShard> shards);

// Blocks. Reads with several chunks in flight, through buffers of `staging`; a chunk is
// damaged when it differs, or when its drive or file system says that its bytes are gone (EIO,
// ENODATA, EILSEQ, EBADMSG, EUCLEAN; the end of the file). Appends to `damaged`, in the order of
// the shards; after an exception, `damaged` has what was found before it. `progress` may be empty.
// Throws IoError when a read fails for any other reason, and OutOfMemory when not even one chunk's
// buffer can be had.
void find_damage(std::span<const StoredShard> shards, nvme::IoEngine& io, MemoryPool& staging,
                 const VerifyProgress& progress, std::vector<DamagedRange>& damaged);

// Throws StorageError that names the file and the place where byte `offset_bytes` of a shard in
// `file` differs from what was written.
[[noreturn]] void throw_damaged(const ShardSlots& slots, const nvme::StripedFile& file,
                                std::uint64_t offset_bytes);

}  // namespace sluice::offload
