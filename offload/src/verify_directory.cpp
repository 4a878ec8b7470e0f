#include <array>
#include <optional>

#include "manifest.hpp"
#include "shard_verify.hpp"
#include "slot_files.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/offload/swap_directory.hpp"
#include "store_files.hpp"

namespace sluice::offload {
namespace {

// One slot file as it is found.
struct FoundSlot {
  std::string path;
  std::optional<nvme::SwapFile> file;  // empty: absent
  std::uint64_t length_bytes = 0;
};

using FoundSlots = std::array<FoundSlot, kSlotCount>;

// Only those that are committed to; the other one may be anything.
FoundSlots find_slots(const std::string& directory, const Manifest& manifest) {
  FoundSlots slots;
  for (const ManifestShard& shard : manifest.shards) {
    FoundSlot& slot = slots.at(index_of_slot(shard.slot));
    if (!slot.path.empty()) continue;
    slot.path = slot_path(directory, shard.slot);
    if (!file_exists(slot.path)) continue;
    slot.file.emplace(slot.path, nvme::OpenMode::read_only, nvme::DirectIo::automatic);
    slot.length_bytes = slot.file->size_bytes();
  }
  return slots;
}

StoredShard stored_shard(const ManifestShard& shard, std::uint64_t file_offset_bytes,
                         const FoundSlot& slot) {
  StoredShard stored;
  stored.spec = &shard.spec;
  stored.path = slot.path;
  stored.file_offset_bytes = file_offset_bytes;
  stored.checksums = shard.checksums;
  if (!slot.file) {
    stored.why_cut_off = "the file is absent";
    return stored;
  }
  stored.file = &*slot.file;
  const std::uint64_t behind_bytes =
      slot.length_bytes - std::min(slot.length_bytes, file_offset_bytes);
  stored.readable_bytes = behind_bytes >= shard.spec.size_bytes
                              ? shard.spec.size_bytes
                              : align_down(behind_bytes, kChecksumChunkBytes);
  stored.why_cut_off = "the file ends at byte " + std::to_string(slot.length_bytes);
  return stored;
}

}  // namespace

VerifyReport verify_directory(const std::string& directory, nvme::IoEngine& io, MemoryPool& staging,
                              const VerifyProgress& progress) {
  const DirectoryLock lock(directory, DirectoryLock::Mode::shared);
  const Manifest manifest = require_manifest(directory);
  const StoreLayout layout = layout_of(specs_of(manifest));
  const FoundSlots slots = find_slots(directory, manifest);
  std::vector<StoredShard> shards;
  shards.reserve(manifest.shards.size());
  for (std::size_t i = 0; i < manifest.shards.size(); ++i) {
    const ManifestShard& shard = manifest.shards[i];
    shards.push_back(
        stored_shard(shard, layout.offset_bytes[i], slots.at(index_of_slot(shard.slot))));
  }
  VerifyReport report;
  report.step = manifest.step;
  report.shard_count = shards.size();
  report.checked_bytes = readable_bytes_of(shards);
  report.damaged = find_damage(shards, io, staging, progress);
  return report;
}

}  // namespace sluice::offload
