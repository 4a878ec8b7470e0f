#include <array>
#include <optional>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "sluice/offload/swap_directory.hpp"
#include "sluice/offload/swap_store.hpp"
#include "swap/manifest.hpp"
#include "swap/shard_verify.hpp"
#include "swap/slot_files.hpp"
#include "swap/store_files.hpp"

namespace sluice::offload {
namespace {

// One slot as it is found.
struct FoundSlot {
  std::optional<nvme::StripedFile> file;  // empty: not all of its files are there
  SlotLength length;
};

using FoundSlots = std::array<FoundSlot, kSlotCount>;

// Only those that are committed to; the other one may be anything.
FoundSlots find_slots(const Stripe& stripe, const Manifest& manifest) {
  SlotSet used = {false, false};
  FoundSlots slots;
  for (const ManifestShard& shard : manifest.shards) {
    const std::size_t index = index_of_slot(shard.slot);
    if (std::exchange(used.at(index), true)) continue;
    FoundSlot& slot = slots.at(index);
    slot.length = slot_length(stripe, shard.slot);
    if (slot.length.absent) continue;
    SlotSet wanted = {false, false};
    wanted.at(index) = true;
    slot.file = std::move(open_slot_files_read_only(stripe, wanted).at(index));
  }
  return slots;
}

StoredShard stored_shard(const ManifestShard& shard, std::uint64_t file_offset_bytes,
                         const FoundSlot& slot) {
  StoredShard stored;
  stored.spec = &shard.spec;
  stored.path = slot.length.path;
  stored.file_offset_bytes = file_offset_bytes;
  stored.checksums = shard.checksums;
  if (!slot.file) {
    stored.why_cut_off = "the file is absent";
    return stored;
  }
  stored.file = &*slot.file;
  const std::uint64_t behind_bytes =
      slot.length.covered_bytes - std::min(slot.length.covered_bytes, file_offset_bytes);
  stored.readable_bytes = behind_bytes >= shard.spec.size_bytes
                              ? shard.spec.size_bytes
                              : align_down(behind_bytes, kChecksumChunkBytes);
  stored.why_cut_off = "the file ends at byte " + std::to_string(slot.length.file_bytes);
  return stored;
}

}  // namespace

VerifyReport verify_directory(const std::string& directory, nvme::IoEngine& io, MemoryPool& staging,
                              const VerifyProgress& progress) {
  const DirectoryLock lock(directory, DirectoryLock::Mode::shared);
  check_is_no_further_part(directory);
  const Manifest manifest = require_manifest(directory);
  const StoreLayout layout = layout_of(manifest);
  const Stripe stripe = stripe_of_committed(directory, manifest);
  const FoundSlots slots = find_slots(stripe, manifest);
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
