#include "swap/shard_verify.hpp"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"
#include "swap/manifest.hpp"

namespace sluice::offload {
namespace {

// Chunks in flight: enough for a drive to be busy while one is checked; fewer where memory is
// short.
constexpr std::size_t kDepth = 16;

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

// Whether a read that failed so shows that bytes are gone: the errnos of kernel and file systems
// for a bad medium and for a checksum of their own that does not fit. EIO is also the end of a
// file. Any other read may succeed in another process, or later.
bool means_lost_bytes(int error_number) {
  switch (error_number) {
    case EIO:
    case ENODATA:
    case EILSEQ:
    case EBADMSG:
    case EUCLEAN:
      return true;
    default:
      return false;
  }
}

// Waits for the chunk. Empty, or what is wrong with it. Throws IoError where the read failed for
// another reason than the bytes.
std::string fault_of(PendingChunk& chunk) {
  try {
    chunk.read.finish();
  } catch (const IoError& error) {
    if (!means_lost_bytes(error.code().value())) throw;
    return "cannot be read: " + error.code().message();
  }
  const std::uint64_t expected = chunk.shard->checksums[chunk.offset_bytes / kChecksumChunkBytes];
  return checksum_of(chunk.data) == expected ? "" : "differs from its checksum";
}

// Walks over the readable chunks of all shards.
class ChunkWalk {
 public:
  explicit ChunkWalk(std::span<const StoredShard> shards) : shards_(shards) { skip_finished(); }
  bool done() const { return shard_ == shards_.size(); }
  PendingChunk begin_next(nvme::IoEngine& io, std::span<std::byte> buffer) {
    const StoredShard& shard = shards_[shard_];
    PendingChunk chunk;
    chunk.shard = &shard;
    chunk.offset_bytes = offset_bytes_;
    chunk.data = buffer.first(std::min(kChecksumChunkBytes, shard.readable_bytes - offset_bytes_));
    chunk.read = io.begin_read(*shard.file, shard.file_offset_bytes + offset_bytes_, chunk.data);
    offset_bytes_ += chunk.data.size();
    skip_finished();
    return chunk;
  }

 private:
  void skip_finished() {
    while (!done() && offset_bytes_ == shards_[shard_].readable_bytes) {
      ++shard_;
      offset_bytes_ = 0;
    }
  }
  std::span<const StoredShard> shards_;
  std::size_t shard_ = 0;
  std::uint64_t offset_bytes_ = 0;
};

// Appends what is damaged to `ranges`, given in the order of the shards, as few ranges as possible:
// a file that is all wrong must not become a line per chunk.
class DamageList {
 public:
  DamageList(std::span<const StoredShard> shards, std::vector<DamagedRange>& ranges)
      : next_(shards.data()), end_(shards.data() + shards.size()), ranges_(ranges) {}
  void add(const StoredShard& shard, std::uint64_t offset_bytes, std::uint64_t size_bytes,
           const std::string& why) {
    close_until(&shard);
    if (!ranges_.empty()) {
      DamagedRange& last = ranges_.back();
      if (last.shard == shard.spec->name && last.why == why && shard.file->parts().size() == 1 &&
          last.offset_bytes + last.size_bytes == offset_bytes) {
        last.size_bytes += size_bytes;
        return;
      }
    }
    // In a striped file: the part in which the range begins.
    const nvme::StripeLayout::Piece piece =
        shard.file->layout().first_piece(shard.file_offset_bytes + offset_bytes, size_bytes);
    ranges_.push_back({shard.spec->name, shard.file->parts()[piece.part].path(), offset_bytes,
                       size_bytes, piece.offset_bytes, why});
  }
  void finish() { close_until(end_); }

 private:
  // Adds what is cut off from the shards before `shard`.
  void close_until(const StoredShard* shard) {
    while (next_ != shard) {
      const StoredShard& cut = *next_++;
      const std::uint64_t missing_bytes = cut.spec->size_bytes - cut.readable_bytes;
      if (missing_bytes == 0) continue;
      ranges_.push_back({cut.spec->name, cut.path, cut.readable_bytes, missing_bytes,
                         cut.file_offset_bytes + cut.readable_bytes, cut.why_cut_off});
    }
  }
  const StoredShard* next_;  // the first shard whose end has not been looked at
  const StoredShard* const end_;
  std::vector<DamagedRange>& ranges_;
};

// Reads and compares all chunks.
void check_chunks(std::span<const StoredShard> shards, nvme::IoEngine& io, MemoryPool& staging,
                  const VerifyProgress& progress, DamageList& damage) {
  const std::vector<Buffer> buffers = take_buffers(staging);
  // Declared after the buffers: the destructor of a pending ticket waits, before its buffer goes.
  std::vector<PendingChunk> pending(buffers.size());
  ChunkWalk walk(shards);
  const std::uint64_t total_bytes = readable_bytes_of(shards);
  std::uint64_t done_bytes = 0;
  bool any_pending = true;
  for (std::size_t at = 0; any_pending || !walk.done(); ++at) {
    PendingChunk& place = pending[at % pending.size()];
    if (place.shard != nullptr) {
      const std::string fault = fault_of(place);
      if (!fault.empty()) damage.add(*place.shard, place.offset_bytes, place.data.size(), fault);
      done_bytes += place.data.size();
      if (progress) progress(done_bytes, total_bytes);
    }
    place =
        walk.done() ? PendingChunk() : walk.begin_next(io, buffers[at % pending.size()].bytes());
    any_pending = std::any_of(pending.begin(), pending.end(),
                              [](const PendingChunk& chunk) { return chunk.shard != nullptr; });
  }
}

}  // namespace

std::uint64_t readable_bytes_of(std::span<const StoredShard> shards) {
  std::uint64_t total_bytes = 0;
  for (const StoredShard& shard : shards) total_bytes += shard.readable_bytes;
  return total_bytes;
}

void find_damage(std::span<const StoredShard> shards, nvme::IoEngine& io, MemoryPool& staging,
                 const VerifyProgress& progress, std::vector<DamagedRange>& damaged) {
  DamageList damage(shards, damaged);
  const std::exception_ptr error =
      error_of([&] { check_chunks(shards, io, staging, progress, damage); });
  damage.finish();
  if (error) std::rethrow_exception(error);
}

void throw_damaged(const ShardSlots& slots, const nvme::StripedFile& file,
                   std::uint64_t offset_bytes) {
  const nvme::StripeLayout::Piece piece =
      file.layout().first_piece(slots.file_offset_bytes() + offset_bytes, kChecksumChunkBytes);
  throw StorageError(
      file.parts()[piece.part].path(),
      "is damaged: shard \"" + slots.spec().name + "\" at its offset " +
          std::to_string(offset_bytes) + " (file offset " + std::to_string(piece.offset_bytes) +
          ") has not the bytes that were written: restore the directory from a copy");
}

}  // namespace sluice::offload
