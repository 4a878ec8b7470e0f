#include "shard_verify.hpp"

#include <algorithm>
#include <utility>

#include "manifest.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"

namespace sluice::offload {
namespace {

// Chunks in flight: enough for a drive to be busy while one is checked; fewer where memory is
// short.
constexpr std::size_t kDepth = 8;

struct PendingChunk {
  const StoredShard* shard = nullptr;
  std::uint64_t offset_bytes = 0;
  std::span<std::byte> data;
  Ticket read;
};

std::vector<Buffer> take_buffers(MemoryPool& staging) {
  std::vector<Buffer> buffers;
  while (buffers.size() < kDepth) {
    try {
      buffers.push_back(staging.allocate(kChecksumChunkBytes, "reading back what is committed"));
    } catch (const OutOfMemory&) {
      if (buffers.empty()) throw;
      break;
    }
  }
  return buffers;
}

bool is_intact(PendingChunk& chunk) {
  try {
    chunk.read.finish();
  } catch (const IoError& error) {
    log(LogLevel::warn, std::string("verify: ") + error.what());
    return false;
  }
  return checksum_of(chunk.data) ==
         chunk.shard->checksums[chunk.offset_bytes / kChecksumChunkBytes];
}

// Walks over the chunks of all shards.
class ChunkWalk {
 public:
  explicit ChunkWalk(std::span<const StoredShard> shards) : shards_(shards) {}
  bool done() const { return shard_ == shards_.size(); }
  PendingChunk begin_next(nvme::IoEngine& io, std::span<std::byte> buffer) {
    const StoredShard& shard = shards_[shard_];
    const std::uint64_t size_bytes =
        std::min(kChecksumChunkBytes, shard.spec->size_bytes - offset_bytes_);
    PendingChunk chunk;
    chunk.shard = &shard;
    chunk.offset_bytes = offset_bytes_;
    chunk.data = buffer.first(size_bytes);
    chunk.read = io.begin_read(*shard.file, shard.file_offset_bytes + offset_bytes_, chunk.data);
    offset_bytes_ += size_bytes;
    if (offset_bytes_ == shard.spec->size_bytes) {
      ++shard_;
      offset_bytes_ = 0;
    }
    return chunk;
  }

 private:
  std::span<const StoredShard> shards_;
  std::size_t shard_ = 0;
  std::uint64_t offset_bytes_ = 0;
};

}  // namespace

std::vector<DamagedChunk> find_damaged_chunks(std::span<const StoredShard> shards,
                                              nvme::IoEngine& io, MemoryPool& staging) {
  const std::vector<Buffer> buffers = take_buffers(staging);
  // Declared after the buffers: the destructor of a pending ticket waits, before its buffer goes.
  std::vector<PendingChunk> pending(buffers.size());
  std::vector<DamagedChunk> damaged;
  ChunkWalk walk(shards);
  bool any_pending = true;
  for (std::size_t at = 0; any_pending || !walk.done(); ++at) {
    PendingChunk& place = pending[at % pending.size()];
    if (place.shard != nullptr && !is_intact(place)) {
      const StoredShard& shard = *place.shard;
      damaged.push_back({shard.spec->name, shard.file->path(), place.offset_bytes,
                         place.data.size(), shard.file_offset_bytes + place.offset_bytes});
    }
    place =
        walk.done() ? PendingChunk() : walk.begin_next(io, buffers[at % pending.size()].bytes());
    any_pending = std::any_of(pending.begin(), pending.end(),
                              [](const PendingChunk& chunk) { return chunk.shard != nullptr; });
  }
  return damaged;
}

}  // namespace sluice::offload
