#include <array>
#include <memory>
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

// A store as it is found, and its shards, which point into it.
struct FoundStore {
  FoundStore(const std::string& directory, std::optional<std::uint64_t> digest)
      : lock(directory, DirectoryLock::Mode::shared) {
    manifest = require_manifest(directory, digest);
    const Stripe stripe = stripe_to_read(directory, manifest);
    warn_if_moved(stripe);
    slots = find_slots(stripe, manifest);
  }
  FoundStore(const FoundStore&) = delete;
  FoundStore& operator=(const FoundStore&) = delete;

  void add_shards(std::vector<StoredShard>& shards) const {
    const StoreLayout layout = layout_of(manifest);
    for (std::size_t i = 0; i < manifest.shards.size(); ++i) {
      const ManifestShard& shard = manifest.shards[i];
      shards.push_back(
          stored_shard(shard, layout.offset_bytes[i], slots.at(index_of_slot(shard.slot))));
    }
  }

  DirectoryLock lock;
  Manifest manifest;
  FoundSlots slots;
};

// The parts of all ranks, or the one store of the directory. The caller holds the directory.
std::vector<std::unique_ptr<FoundStore>> find_stores(const std::string& directory) {
  std::vector<std::unique_ptr<FoundStore>> stores;
  const std::optional<RankManifest> ranks = load_rank_manifest(directory);
  if (!ranks) {
    stores.push_back(std::make_unique<FoundStore>(directory, std::nullopt));
    return stores;
  }
  for (int rank = 0; rank < ranks->world_size(); ++rank) {
    stores.push_back(std::make_unique<FoundStore>(rank_folder(directory, rank, ranks->world_size()),
                                                  ranks->digests[static_cast<std::size_t>(rank)]));
  }
  return stores;
}

}  // namespace

void verify_directory(const std::string& directory, nvme::IoEngine& io, MemoryPool& staging,
                      const VerifyProgress& progress, VerifyReport& report) {
  const DirectoryLock lock(directory, DirectoryLock::Mode::shared);
  const std::vector<std::unique_ptr<FoundStore>> stores = find_stores(directory);
  std::vector<StoredShard> shards;
  for (const std::unique_ptr<FoundStore>& store : stores) store->add_shards(shards);
  report.step = stores.front()->manifest.step;
  report.shard_count = shards.size();
  report.checked_bytes = readable_bytes_of(shards);
  find_damage(shards, io, staging, progress, report.damaged);
}

}  // namespace sluice::offload
