#pragma once
// ShardSlots: which slot of a shard holds what, and the checksums of both. Bookkeeping only, no
// I/O.
//
// A shard is in one of four states; C is the committed slot, W the slot that is written.
//   new        nothing finished, nothing committed: reads give zeros; a first update may be under
//   way in W committed  reads give C; an update may be under way in W updated    an update has been
//   finished since the commit: reads give W, and further updates change W updating   the same with
//   such a further update under way: reads of W see old and new bytes
// finish_update(): new, committed -> updated (every chunk must have been written); updating ->
// updated. mark_committed(): updated -> committed with C = W; committed stays. W is the other slot
// than C, or, with WritePolicy::in_place, C itself; slot 0 before the first commit.
//
// Thread-compatible: callers synchronise; record_write of different chunks, latest_slot, write_slot
// and check may run at the same time.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "sluice/offload/swap_state.hpp"
#include "swap/manifest.hpp"
#include "swap/store_files.hpp"

namespace sluice::offload {

enum class WritePolicy { other_slot, in_place };

class ShardSlots {
 public:
  // A new shard.
  ShardSlots(ShardSpec spec, std::uint64_t file_offset_bytes, WritePolicy policy);
  // A committed one.
  ShardSlots(ManifestShard committed, std::uint64_t file_offset_bytes, WritePolicy policy);

  const ShardSpec& spec() const { return spec_; }
  std::uint64_t file_offset_bytes() const { return file_offset_bytes_; }
  // Empty: a new shard.
  std::optional<int> latest_slot() const { return latest_slot_; }
  std::optional<int> committed_slot() const { return committed_slot_; }
  int write_slot() const;
  // One for each chunk; of a slot that has been written.
  std::span<const std::uint64_t> checksums(int slot) const;

  // Throw InvalidArgument when the range is not inside the shard, or not one of whole chunks.
  void check_range(std::uint64_t offset_bytes, std::uint64_t size_bytes) const;
  void check_chunks(std::uint64_t offset_bytes, std::uint64_t size_bytes) const;

  // Takes the checksums of chunks that are about to be written to write_slot(). Throws
  // InvalidArgument unless there is one for each chunk.
  void record_write(std::uint64_t offset_bytes, std::uint64_t size_bytes,
                    std::span<const std::uint64_t> checksums);
  // Throws InvalidArgument naming the first chunk that is missing.
  void finish_update();
  // The first chunk of `data` that differs from the latest checksums (from zeros in a new shard),
  // as its offset in the shard; empty: none.
  std::optional<std::uint64_t> first_difference(std::uint64_t offset_bytes,
                                                std::span<const std::byte> data) const;
  // Throws InvalidArgument when the shard is new or an update is under way.
  void check_committable() const;
  void mark_committed();
  // Whether anything was written since the last commit.
  bool changed() const;

 private:
  enum class ChunkState : std::uint8_t { untouched, written, in_update };

  ShardSpec spec_;
  std::uint64_t file_offset_bytes_;
  WritePolicy policy_;
  std::optional<int> committed_slot_;
  std::optional<int> latest_slot_;
  std::array<std::vector<std::uint64_t>, kSlotCount> checksums_;  // of each slot, by chunk
  std::vector<ChunkState>
      chunks_;  // since the last commit: untouched; finished; in the update under way
};

// The checksum of each chunk of `data`.
std::vector<std::uint64_t> checksums_of(std::span<const std::byte> data);

WritePolicy policy_of(Durability durability);

}  // namespace sluice::offload
