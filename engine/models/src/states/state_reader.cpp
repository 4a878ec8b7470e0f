#include "sluice/models/state_reader.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/cpu_adam/optimizer.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "sluice/offload/swap_place.hpp"

namespace sluice::models {

namespace {

using offload::kChecksumChunkBytes;

// Whether `part` of rank `rank` is of the state that rank 0 wrote.
void check_same_state(const RunState& first, const std::string& metadata, int rank,
                      const std::string& folder) {
  const RunState state = parse_run_state(metadata, folder + "/manifest.json");
  if (state.line == first.line && state.order == first.order && state.step == first.step &&
      state.world_size == first.world_size && state.format == first.format)
    return;
  throw StorageError(
      folder, "rank " + std::to_string(rank) + " has a part of another state than rank 0 (step " +
                  std::to_string(state.step) + ", not " + std::to_string(first.step) + ")");
}

void check_is_here(const SavedState& saved, const std::string& folder) {
  std::error_code error;
  if (std::filesystem::is_directory(folder, error)) return;
  throw StorageError(saved.directory,
                     "has the states of " + std::to_string(saved.parts.size()) + " ranks, and " +
                         folder +
                         " is not here: make the folders of all ranks reachable, or go on with as "
                         "many ranks as before, or from a checkpoint");
}

}  // namespace

StateReader::StateReader(const SavedState& saved, nvme::IoEngine& io,
                         const offload::HeldDirectories* held)
    : state_(saved.state) {
  for (const zero::UnitLayout& unit : state_.units)
    shard_counts_[unit.name] = zero::shard_range(unit, 0, state_.world_size).count;
  const std::vector<offload::ShardSpec> shards =
      state_shards(state_.units, state_.format, state_.world_size);
  for (const SavedPart& part : saved.parts) {
    check_is_here(saved, part.folder);
    offload::SwapPlace place(part.folder);
    place.held = held;
    stores_.push_back(offload::SwapStore::open_read_only(place, io, part.digest));
    const offload::SwapStore& store = *stores_.back();
    check_same_state(state_, store.committed_metadata(), static_cast<int>(stores_.size()) - 1,
                     part.folder);
    for (const offload::ShardSpec& shard : shards) {
      if (store.shard(store.index_of(shard.name)).size_bytes == shard.size_bytes) continue;
      throw StorageError(part.folder, "has another size of shard \"" + shard.name + "\" than " +
                                          std::to_string(shard.size_bytes) + " bytes");
    }
  }
  if (stores_.front()->committed_metadata() != saved.metadata) {
    throw StorageError(saved.directory,
                       "was changed by another process while it was read: it held step " +
                           std::to_string(state_.step) + ", and holds step " +
                           std::to_string(stores_.front()->committed_step()) + " now");
  }
}

std::vector<std::string> StateReader::directories() const {
  std::vector<std::string> all;
  for (const auto& store : stores_) {
    const std::vector<std::string> each = store->place().directories();
    all.insert(all.end(), each.begin(), each.end());
  }
  return all;
}

void StateReader::read_from(offload::SwapStore& store, std::size_t shard,
                            std::uint64_t offset_bytes, std::span<std::byte> bytes) const {
  const std::uint64_t shard_bytes = store.shard(shard).size_bytes;
  const std::uint64_t end = offset_bytes + bytes.size();
  if (offset_bytes % kChecksumChunkBytes == 0 &&
      (end % kChecksumChunkBytes == 0 || end == shard_bytes)) {
    store.begin_read(shard, offset_bytes, bytes).finish();
    store.check(shard, offset_bytes, bytes);
    return;
  }
  // Checksums are of whole chunks.
  offload::MemoryPool pool(offload::Tier::host, offload::kUnlimited, offload::make_host_source());
  const offload::Buffer chunk = pool.allocate(kChecksumChunkBytes, "a chunk of saved states");
  for (std::uint64_t at = align_down(offset_bytes, kChecksumChunkBytes); at < end;
       at += kChecksumChunkBytes) {
    const std::span<std::byte> read =
        chunk.bytes().first(std::min(kChecksumChunkBytes, shard_bytes - at));
    store.begin_read(shard, at, read).finish();
    store.check(shard, at, read);
    const std::uint64_t from = std::max(at, offset_bytes);
    const std::uint64_t to = std::min(at + read.size(), end);
    std::memcpy(bytes.data() + (from - offset_bytes), read.data() + (from - at), to - from);
  }
}

void StateReader::read(const std::string& unit, std::size_t part, std::uint64_t begin_count,
                       std::span<std::byte> bytes) const {
  const auto found = shard_counts_.find(unit);
  SLUICE_CHECK(found != shard_counts_.end(), "the saved state has no unit \"" + unit + "\"");
  const std::uint64_t shard_count = found->second;
  const StatePart format = state_.format.part(part);
  const std::string name = unit + "/" + std::string(format.name);
  std::uint64_t at = begin_count;
  std::uint64_t left = bytes.size() / format.element_bytes;
  while (left > 0 && at / shard_count < stores_.size()) {
    offload::SwapStore& store = *stores_[at / shard_count];
    const std::uint64_t within = at % shard_count;
    const std::uint64_t count = std::min(left, shard_count - within);
    read_from(store, store.index_of(name), within * format.element_bytes,
              bytes.first(count * format.element_bytes));
    bytes = bytes.subspan(count * format.element_bytes);
    at += count;
    left -= count;
  }
}

void StateReader::read_master(const std::string& unit, std::uint64_t begin_count,
                              std::span<float> values, std::span<std::byte> halves) const {
  std::ranges::fill(values, 0.0F);
  if (!state_.format.is_split()) {
    read(unit, 0, begin_count, std::as_writable_bytes(values));
    return;
  }
  const std::size_t half_bytes = values.size() * sizeof(Bf16);
  const std::span<std::byte> weight_bytes = halves.first(half_bytes);
  const std::span<std::byte> low_bytes = halves.subspan(half_bytes, half_bytes);
  std::ranges::fill(halves, std::byte{0});
  read(unit, 0, begin_count, weight_bytes);
  read(unit, 1, begin_count, low_bytes);
  const auto* const weight = reinterpret_cast<const Bf16*>(weight_bytes.data());
  const auto* const low = reinterpret_cast<const std::uint16_t*>(low_bytes.data());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = cpu_adam::join({weight[i], low[i]});
}

}  // namespace sluice::models
