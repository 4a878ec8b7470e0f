#include "sluice/offload/swap_store.hpp"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/mutex.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "swap/manifest.hpp"
#include "swap/shard_slots.hpp"
#include "swap/shard_verify.hpp"
#include "swap/store_drives.hpp"
#include "swap/store_files.hpp"

namespace sluice::offload {
namespace {

enum class Access { read_only, read_write };

DirectoryLock::Mode lock_mode_of(Access access) {
  return access == Access::read_only ? DirectoryLock::Mode::shared : DirectoryLock::Mode::exclusive;
}

}  // namespace

class SwapStore::Impl {
 public:
  Impl(SwapPlace place, nvme::IoEngine& io, Access access, Durability durability)
      : drives_(std::move(place), lock_mode_of(access)),
        directory_(drives_.first()),
        io_(io),
        access_(access),
        durability_(durability),
        io_written_before_(io.counters().written_bytes) {}

  void start_new(std::vector<ShardSpec> shards, nvme::DirectIo direct);
  void start_committed(nvme::DirectIo direct);
  std::uint64_t file_bytes() const { return drives_.file_bytes(); }
  std::uint64_t written_bytes() const {
    return written_before_ + io_.counters().written_bytes - io_written_before_;
  }

  const std::string& directory() const { return directory_; }
  SwapPlace place() const {
    return {drives_.stripe().directories, drives_.stripe().layout.weights()};
  }
  std::size_t shard_count() const { return shards_.size(); }
  const ShardSlots& shard(std::size_t index) const {
    check_index(index);
    return shards_[index];
  }
  std::size_t index_of(const std::string& name) const;
  std::int64_t step() const { return step_; }
  std::int64_t resumable_step() const {
    MutexLock lock(mutex_);
    return on_disk_ == OnDisk::outdated || on_disk_ == OnDisk::absent ? 0 : step_;
  }
  const std::string& metadata() const { return metadata_; }
  std::string why_buffered() const { return drives_.why_buffered(); }

  Ticket begin_read(std::size_t index, std::uint64_t offset_bytes, std::span<std::byte> data);
  Ticket begin_write(std::size_t index, std::uint64_t offset_bytes, std::span<const std::byte> data,
                     std::span<const std::uint64_t> checksums);
  void finish_update(std::size_t index);
  void check(std::size_t index, std::uint64_t offset_bytes, std::span<const std::byte> data) const;
  void commit(std::int64_t step, const std::string& metadata);
  void close_cleanly();
  std::vector<DamagedRange> verify(MemoryPool& staging);

 private:
  // The state of DIR/manifest.json.
  //   current     it names the last commit
  //   outdated    Durability::none: it names an earlier commit of the same bytes, or its removal is
  //               not durable yet
  //   absent      nothing is committed yet, or it was removed before the first write in place
  //   unsynced    Durability::power: it names the commit of an earlier run, which may not be
  //               durable yet
  //   in_doubt    it names a commit that loss of power may take back: both slots are in use
  enum class OnDisk { current, outdated, absent, unsynced, in_doubt };

  void check_index(std::size_t index) const;
  void check_writable(const char* operation) const;
  void index_names();
  // Brings the manifest into a state in which the slots that are not committed may be changed.
  void prepare_write();
  Manifest manifest_of(std::int64_t step, const std::string& metadata) const;
  void write_manifest(std::int64_t step, const std::string& metadata);

  StoreDrives drives_;
  const std::string directory_;  // the first of theirs
  nvme::IoEngine& io_;
  const Access access_;
  const Durability durability_;
  const std::uint64_t io_written_before_;
  // Constant after start_*.
  std::uint64_t written_before_ = 0;  // by earlier runs
  std::unordered_map<std::string, std::size_t> indices_;
  std::vector<ShardSlots> shards_;  // the elements: the caller orders calls for one shard
  // Changed by commit and start_* only, which the caller orders with everything.
  std::int64_t step_ = 0;
  std::string metadata_;

  mutable Mutex mutex_;
  OnDisk on_disk_ SLUICE_GUARDED_BY(mutex_) = OnDisk::absent;
};

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

void SwapStore::Impl::start_committed(nvme::DirectIo direct) {
  Manifest manifest = require_manifest(directory_);
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
  prepare_write();
  slots.record_write(offset_bytes, data.size(), checksums);
  return io_.begin_write(drives_.file(slots.write_slot()), slots.file_offset_bytes() + offset_bytes,
                         data);
}

void SwapStore::Impl::prepare_write() {
  MutexLock lock(mutex_);
  if (on_disk_ == OnDisk::in_doubt) {
    throw StorageError(
        directory_,
        "the last commit is in doubt, because the directory could not be synced, and "
        "writing now could damage it: commit again first");
  }
  if (on_disk_ == OnDisk::unsynced) {
    // Else loss of power could bring back the manifest of the slots that are written now.
    drives_.sync_data();
    sync_file(manifest_path(directory_));
    sync_directory(directory_);
    on_disk_ = OnDisk::current;
  }
  if (durability_ != Durability::none || on_disk_ == OnDisk::absent) return;
  on_disk_ = OnDisk::outdated;
  remove_file(manifest_path(directory_));
  // Else loss of power could bring the manifest back beside bytes that were changed after it.
  sync_directory(directory_);
  on_disk_ = OnDisk::absent;
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

Manifest SwapStore::Impl::manifest_of(std::int64_t step, const std::string& metadata) const {
  Manifest manifest;
  manifest.step = step;
  manifest.durability = durability_;
  manifest.store_id = drives_.stripe().store_id;
  manifest.written_bytes = written_bytes();
  manifest.metadata = metadata;
  manifest.shards.reserve(shards_.size());
  for (const ShardSlots& slots : shards_) {
    const int slot = slots.latest_slot().value();
    const auto checksums = slots.checksums(slot);
    manifest.shards.push_back({slots.spec(), slot, {checksums.begin(), checksums.end()}});
  }
  return manifest;
}

void SwapStore::Impl::write_manifest(std::int64_t step, const std::string& metadata) {
  const std::string text = to_text(manifest_of(step, metadata));
  drives_.check_still_there();
  drives_.mark_committed();
  MutexLock lock(mutex_);
  if (durability_ != Durability::power) {
    replace_manifest(directory_, text, ManifestSync::none, durability_);
  } else {
    // Both: an earlier commit without this durability may have left either of them unsynced.
    drives_.sync_data();
    replace_manifest(directory_, text, ManifestSync::fsync, durability_);
    on_disk_ = OnDisk::in_doubt;
    sync_directory(directory_);
  }
  on_disk_ = OnDisk::current;
}

void SwapStore::Impl::commit(std::int64_t step, const std::string& metadata) {
  check_writable("commit");
  for (const ShardSlots& slots : shards_) slots.check_committable();
  std::string kept_metadata =
      metadata;  // copied first: nothing may throw once the manifest is replaced
  if (durability_ == Durability::none) {
    MutexLock lock(mutex_);
    if (on_disk_ == OnDisk::current) on_disk_ = OnDisk::outdated;
  } else {
    write_manifest(step, metadata);
  }
  for (ShardSlots& slots : shards_) slots.mark_committed();
  step_ = step;
  metadata_ = std::move(kept_metadata);
}

void SwapStore::Impl::close_cleanly() {
  if (access_ == Access::read_only || durability_ != Durability::none) return;
  for (const ShardSlots& slots : shards_) {
    SLUICE_CHECK(!slots.changed(), "shard \"" + slots.spec().name +
                                       "\" was written after the last commit: commit it before "
                                       "closing, else " +
                                       directory_ + " cannot be resumed");
    if (!slots.committed_slot()) return;  // never committed: then none is
  }
  {
    MutexLock lock(mutex_);
    if (on_disk_ == OnDisk::current) return;
  }
  write_manifest(step_, metadata_);
}

std::vector<DamagedRange> SwapStore::Impl::verify(MemoryPool& staging) {
  std::vector<StoredShard> committed;
  committed.reserve(shards_.size());
  for (const ShardSlots& slots : shards_) {
    const std::optional<int> slot = slots.committed_slot();
    if (!slot) continue;
    committed.push_back(whole_shard(slots.spec(), drives_.file(*slot), slots.file_offset_bytes(),
                                    slots.checksums(*slot)));
  }
  return find_damage(committed, io_, staging, nullptr);
}

std::unique_ptr<SwapStore> SwapStore::create(const SwapPlace& place, nvme::IoEngine& io,
                                             std::vector<ShardSpec> shards, Durability durability,
                                             nvme::DirectIo direct) {
  check_shards(shards);
  auto impl = std::make_unique<Impl>(place, io, Access::read_write, durability);
  impl->start_new(std::move(shards), direct);
  return std::unique_ptr<SwapStore>(new SwapStore(std::move(impl)));
}

std::unique_ptr<SwapStore> SwapStore::open(const SwapPlace& place, nvme::IoEngine& io,
                                           Durability durability, nvme::DirectIo direct) {
  auto impl = std::make_unique<Impl>(place, io, Access::read_write, durability);
  impl->start_committed(direct);
  return std::unique_ptr<SwapStore>(new SwapStore(std::move(impl)));
}

std::unique_ptr<SwapStore> SwapStore::open_read_only(const std::string& directory,
                                                     nvme::IoEngine& io) {
  auto impl = std::make_unique<Impl>(directory, io, Access::read_only, Durability::process);
  impl->start_committed(nvme::DirectIo::automatic);
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
void SwapStore::commit(std::int64_t step, const std::string& metadata) {
  impl_->commit(step, metadata);
}
void SwapStore::close_cleanly() {
  impl_->close_cleanly();
}
std::vector<DamagedRange> SwapStore::verify(MemoryPool& staging) {
  return impl_->verify(staging);
}

}  // namespace sluice::offload
