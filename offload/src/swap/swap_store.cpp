#include "sluice/offload/swap_store.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "sluice/base/error.hpp"
#include "swap/shard_verify.hpp"
#include "swap/store_files.hpp"
#include "swap/swap_store_impl.hpp"

namespace sluice::offload {
void SwapStore::Impl::start_new(std::vector<ShardSpec> shards, nvme::DirectIo direct) {
  if (const std::optional<Manifest> committed = load_manifest(directory_)) {
    throw StorageError(directory_, "holds a committed run of step " +
                                       std::to_string(committed->step) +
                                       ": resume it (--resume), or choose another directory, or " +
                                       how_to_start_over(directory_));
  }
  const StoreLayout layout =
      layout_of(shards, drives_.place().further.empty() ? Placement::packed : Placement::striped);
  drives_.make(layout.file_bytes, {true, durability_ != Durability::none},
               manifest_disk_bytes(shards), direct);
  shards_.reserve(shards.size());
  for (std::size_t i = 0; i < shards.size(); ++i) {
    shards_.emplace_back(std::move(shards[i]), layout.offset_bytes[i], policy_of(durability_));
  }
  drives_.register_with(io_);
  index_names();
}

void SwapStore::Impl::start_committed(nvme::DirectIo direct, std::optional<std::uint64_t> digest) {
  Manifest manifest = require_manifest(directory_, digest);
  SlotSet wanted = {false, false};
  for (const ManifestShard& shard : manifest.shards) wanted.at(index_of_slot(shard.slot)) = true;
  if (access_ == Access::read_write && durability_ != Durability::none) wanted = {true, true};
  drives_.open(manifest, wanted, direct);
  written_before_ = manifest.written_bytes;
  const StoreLayout layout = layout_of(manifest);
  step_ = manifest.step;
  metadata_ = std::move(manifest.metadata);
  shards_.reserve(manifest.shards.size());
  for (std::size_t i = 0; i < manifest.shards.size(); ++i) {
    shards_.emplace_back(std::move(manifest.shards[i]), layout.offset_bytes[i],
                         policy_of(durability_));
  }
  drives_.register_with(io_);
  index_names();
  MutexLock lock(mutex_);
  on_disk_ = durability_ == Durability::power ? OnDisk::unsynced : OnDisk::current;
}

void SwapStore::Impl::index_names() {
  for (std::size_t i = 0; i < shards_.size(); ++i) indices_.emplace(shards_[i].spec().name, i);
}

void SwapStore::Impl::check_index(std::size_t index) const {
  SLUICE_CHECK(index < shards_.size(), "there is no shard " + std::to_string(index) + ", " +
                                           directory_ + " has " + std::to_string(shards_.size()));
}

void SwapStore::Impl::check_writable(const char* operation) const {
  SLUICE_CHECK(access_ == Access::read_write,
               directory_ + " is open for reading only: " + operation + " is not possible");
}

std::size_t SwapStore::Impl::index_of(const std::string& name) const {
  const auto found = indices_.find(name);
  SLUICE_CHECK(found != indices_.end(), directory_ + " has no shard \"" + name + "\"");
  return found->second;
}

Ticket SwapStore::Impl::begin_read(std::size_t index, std::uint64_t offset_bytes,
                                   std::span<std::byte> data) {
  const ShardSlots& slots = shard(index);
  slots.check_range(offset_bytes, data.size());
  const std::optional<int> latest = slots.latest_slot();
  if (!latest) {
    std::fill(data.begin(), data.end(), std::byte{0});
    return {};
  }
  return io_.begin_read(drives_.file(*latest), slots.file_offset_bytes() + offset_bytes, data);
}

Ticket SwapStore::Impl::begin_write(std::size_t index, std::uint64_t offset_bytes,
                                    std::span<const std::byte> data,
                                    std::span<const std::uint64_t> checksums) {
  check_writable("begin_write");
  check_index(index);
  ShardSlots& slots = shards_[index];
  slots.check_chunks(offset_bytes, data.size());
  if (data.empty()) return {};
  if (offset_bytes == 0) drives_.check_locks();  // once an update
  prepare_write();
  slots.record_write(offset_bytes, data.size(), checksums);
  return io_.begin_write(drives_.file(slots.write_slot()), slots.file_offset_bytes() + offset_bytes,
                         data);
}

void SwapStore::Impl::finish_update(std::size_t index) {
  check_writable("finish_update");
  check_index(index);
  shards_[index].finish_update();
}

void SwapStore::Impl::check(std::size_t index, std::uint64_t offset_bytes,
                            std::span<const std::byte> data) const {
  const ShardSlots& slots = shard(index);
  const std::optional<std::uint64_t> different = slots.first_difference(offset_bytes, data);
  if (!different) return;
  throw_damaged(slots, drives_.file(slots.latest_slot().value_or(0)), *different);
}

std::unique_ptr<SwapStore> SwapStore::create(const SwapPlace& place, nvme::IoEngine& io,
                                             std::vector<ShardSpec> shards, Durability durability,
                                             nvme::DirectIo direct) {
  check_shards(shards);
  auto impl = std::make_unique<Impl>(place, io, Impl::Access::read_write, durability);
  impl->start_new(std::move(shards), direct);
  return std::unique_ptr<SwapStore>(new SwapStore(std::move(impl)));
}

std::unique_ptr<SwapStore> SwapStore::open(const SwapPlace& place, nvme::IoEngine& io,
                                           Durability durability, nvme::DirectIo direct) {
  auto impl = std::make_unique<Impl>(place, io, Impl::Access::read_write, durability);
  impl->start_committed(direct, std::nullopt);
  return std::unique_ptr<SwapStore>(new SwapStore(std::move(impl)));
}

std::unique_ptr<SwapStore> SwapStore::open_read_only(const SwapPlace& place, nvme::IoEngine& io,
                                                     std::optional<std::uint64_t> digest) {
  auto impl = std::make_unique<Impl>(place, io, Impl::Access::read_only, Durability::process);
  impl->start_committed(nvme::DirectIo::automatic, digest);
  return std::unique_ptr<SwapStore>(new SwapStore(std::move(impl)));
}

SwapStore::SwapStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SwapStore::~SwapStore() = default;

const std::string& SwapStore::directory() const {
  return impl_->directory();
}
SwapPlace SwapStore::place() const {
  return impl_->place();
}
std::size_t SwapStore::shard_count() const {
  return impl_->shard_count();
}
const ShardSpec& SwapStore::shard(std::size_t index) const {
  return impl_->shard(index).spec();
}
std::size_t SwapStore::index_of(const std::string& name) const {
  return impl_->index_of(name);
}
std::int64_t SwapStore::resumable_step() const {
  return impl_->resumable_step();
}
std::optional<std::int64_t> SwapStore::prepared_step() const {
  return impl_->prepared_step();
}
std::int64_t SwapStore::committed_step() const {
  return impl_->step();
}
const std::string& SwapStore::committed_metadata() const {
  return impl_->metadata();
}
std::uint64_t SwapStore::file_bytes() const {
  return impl_->file_bytes();
}
std::uint64_t SwapStore::written_bytes() const {
  return impl_->written_bytes();
}
Durability SwapStore::durability() const {
  return impl_->durability();
}
std::string SwapStore::why_buffered() const {
  return impl_->why_buffered();
}

Ticket SwapStore::begin_read(std::size_t shard, std::uint64_t offset_bytes,
                             std::span<std::byte> data) {
  return impl_->begin_read(shard, offset_bytes, data);
}
Ticket SwapStore::begin_write(std::size_t shard, std::uint64_t offset_bytes,
                              std::span<const std::byte> data) {
  return impl_->begin_write(shard, offset_bytes, data, checksums_of(data));
}
Ticket SwapStore::begin_write(std::size_t shard, std::uint64_t offset_bytes,
                              std::span<const std::byte> data,
                              std::span<const std::uint64_t> checksums) {
  return impl_->begin_write(shard, offset_bytes, data, checksums);
}
void SwapStore::finish_update(std::size_t shard) {
  impl_->finish_update(shard);
}
void SwapStore::check(std::size_t shard, std::uint64_t offset_bytes,
                      std::span<const std::byte> data) const {
  impl_->check(shard, offset_bytes, data);
}
void SwapStore::check_committed() const {
  impl_->check_committed();
}
void SwapStore::commit(std::int64_t step, const std::string& metadata) {
  impl_->commit(step, metadata);
}
void SwapStore::close_cleanly() {
  impl_->close_cleanly();
}
std::uint64_t SwapStore::prepare_commit(std::int64_t step, const std::string& metadata) {
  return impl_->prepare_commit(step, metadata);
}
void SwapStore::finish_commit() {
  impl_->finish_commit();
}
void SwapStore::abandon_commit() noexcept {
  impl_->abandon_commit();
}
void SwapStore::sync_committed() {
  impl_->sync_committed();
}

}  // namespace sluice::offload
