#include "swap/shard_slots.hpp"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "sluice/base/error.hpp"

namespace sluice::offload {
namespace {

std::string range_text(const ShardSpec& spec, std::uint64_t offset_bytes,
                       std::uint64_t size_bytes) {
  return "shard \"" + spec.name + "\" (" + std::to_string(spec.size_bytes) +
         " bytes): " + std::to_string(size_bytes) + " bytes at offset " +
         std::to_string(offset_bytes);
}

}  // namespace

std::vector<std::uint64_t> checksums_of(std::span<const std::byte> data) {
  std::vector<std::uint64_t> checksums;
  for (std::size_t at = 0; at < data.size(); at += kChecksumChunkBytes)
    checksums.push_back(checksum_of(
        data.subspan(at, std::min<std::size_t>(kChecksumChunkBytes, data.size() - at))));
  return checksums;
}

WritePolicy policy_of(Durability durability) {
  return durability == Durability::none ? WritePolicy::in_place : WritePolicy::other_slot;
}

ShardSlots::ShardSlots(ShardSpec spec, std::uint64_t file_offset_bytes, WritePolicy policy)
    : spec_(std::move(spec)),
      file_offset_bytes_(file_offset_bytes),
      policy_(policy),
      chunks_(chunk_count(spec_.size_bytes), ChunkState::untouched) {
  for (auto& checksums : checksums_) checksums.resize(chunks_.size());
}

ShardSlots::ShardSlots(ManifestShard committed, std::uint64_t file_offset_bytes, WritePolicy policy)
    : ShardSlots(std::move(committed.spec), file_offset_bytes, policy) {
  committed_slot_ = committed.slot;
  latest_slot_ = committed.slot;
  checksums_.at(static_cast<std::size_t>(committed.slot)) = std::move(committed.checksums);
}

int ShardSlots::write_slot() const {
  if (!committed_slot_) return 0;
  return policy_ == WritePolicy::in_place ? *committed_slot_ : 1 - *committed_slot_;
}

std::span<const std::uint64_t> ShardSlots::checksums(int slot) const {
  return checksums_.at(static_cast<std::size_t>(slot));
}

void ShardSlots::check_range(std::uint64_t offset_bytes, std::uint64_t size_bytes) const {
  SLUICE_CHECK(offset_bytes <= spec_.size_bytes && size_bytes <= spec_.size_bytes - offset_bytes,
               range_text(spec_, offset_bytes, size_bytes) + " are not inside it");
}

void ShardSlots::check_chunks(std::uint64_t offset_bytes, std::uint64_t size_bytes) const {
  check_range(offset_bytes, size_bytes);
  SLUICE_CHECK(
      offset_bytes % kChecksumChunkBytes == 0 &&
          (size_bytes % kChecksumChunkBytes == 0 || offset_bytes + size_bytes == spec_.size_bytes),
      range_text(spec_, offset_bytes, size_bytes) + " are not whole chunks of " +
          std::to_string(kChecksumChunkBytes) + " bytes");
}

void ShardSlots::record_write(std::uint64_t offset_bytes, std::uint64_t size_bytes,
                              std::span<const std::uint64_t> checksums) {
  check_chunks(offset_bytes, size_bytes);
  SLUICE_CHECK(checksums.size() == chunk_count(size_bytes),
               range_text(spec_, offset_bytes, size_bytes) + " have " +
                   std::to_string(chunk_count(size_bytes)) + " chunks, but there are " +
                   std::to_string(checksums.size()) + " checksums");
  const auto first = static_cast<std::ptrdiff_t>(offset_bytes / kChecksumChunkBytes);
  std::copy(checksums.begin(), checksums.end(),
            checksums_.at(static_cast<std::size_t>(write_slot())).begin() + first);
  std::fill_n(chunks_.begin() + first, checksums.size(), ChunkState::in_update);
}

void ShardSlots::finish_update() {
  const auto missing = std::find(chunks_.begin(), chunks_.end(), ChunkState::untouched);
  if (missing != chunks_.end()) {
    const auto offset_bytes =
        static_cast<std::uint64_t>(missing - chunks_.begin()) * kChecksumChunkBytes;
    throw InvalidArgument("the first update of shard \"" + spec_.name +
                          "\" after a commit must write all of it; the chunk at offset " +
                          std::to_string(offset_bytes) + " was not written");
  }
  std::fill(chunks_.begin(), chunks_.end(), ChunkState::written);
  latest_slot_ = write_slot();
}

std::optional<std::uint64_t> ShardSlots::first_difference(std::uint64_t offset_bytes,
                                                          std::span<const std::byte> data) const {
  check_chunks(offset_bytes, data.size());
  std::size_t chunk = offset_bytes / kChecksumChunkBytes;
  for (std::size_t at = 0; at < data.size(); at += kChecksumChunkBytes, ++chunk) {
    const auto part =
        data.subspan(at, std::min<std::size_t>(kChecksumChunkBytes, data.size() - at));
    const bool equal = latest_slot_ ? checksum_of(part) == checksums(*latest_slot_)[chunk]
                                    : std::all_of(part.begin(), part.end(), [](std::byte value) {
                                        return value == std::byte{0};
                                      });
    if (!equal) return chunk * kChecksumChunkBytes;
  }
  return std::nullopt;
}

void ShardSlots::check_committable() const {
  SLUICE_CHECK(
      std::find(chunks_.begin(), chunks_.end(), ChunkState::in_update) == chunks_.end(),
      "shard \"" + spec_.name + "\" cannot be committed: an update of it was not finished");
  SLUICE_CHECK(latest_slot_.has_value(),
               "shard \"" + spec_.name + "\" cannot be committed: it has never been written");
}

void ShardSlots::mark_committed() {
  assert(latest_slot_.has_value());
  committed_slot_ = latest_slot_;
  std::fill(chunks_.begin(), chunks_.end(), ChunkState::untouched);
}

bool ShardSlots::changed() const {
  return std::any_of(chunks_.begin(), chunks_.end(),
                     [](ChunkState state) { return state != ChunkState::untouched; });
}

}  // namespace sluice::offload
