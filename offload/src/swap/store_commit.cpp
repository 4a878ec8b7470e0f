// SwapStore: what becomes of the manifest: commits in one phase and in two, and the orderly end.

#include <cerrno>
#include <cstdio>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/written.hpp"
#include "swap/store_files.hpp"
#include "swap/swap_store_impl.hpp"

namespace sluice::offload {

void SwapStore::Impl::prepare_write() {
  MutexLock lock(mutex_);
  if (on_disk_ == OnDisk::in_doubt) {
    throw StorageError(
        directory_,
        "the last commit is in doubt, because the directory could not be synced, and "
        "writing now could damage it: commit again first");
  }
  check_nothing_prepared();
  make_durable();
  if (durability_ != Durability::none || on_disk_ == OnDisk::absent) return;
  on_disk_ = OnDisk::outdated;
  remove_file(manifest_path(directory_));
  // Else loss of power could bring the manifest back beside bytes that were changed after it.
  sync_path(directory_);
  on_disk_ = OnDisk::absent;
}

void SwapStore::Impl::make_durable() {
  if (on_disk_ != OnDisk::unsynced) return;
  // Else loss of power could bring back the manifest of the slots that are written now.
  drives_.sync_data();
  sync_path(manifest_path(directory_));
  sync_path(directory_);
  on_disk_ = OnDisk::current;
}

void SwapStore::Impl::sync_committed() {
  MutexLock lock(mutex_);
  make_durable();
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
  try {
    put_manifest(text);
  } catch (const IoError& error) {
    // The directory may have gone since, and the check says what to do.
    if (error.code().value() == ENOENT) drives_.check_still_there();
    throw;
  }
}

void SwapStore::Impl::put_manifest(const std::string& text) {
  drives_.mark_committed();
  MutexLock lock(mutex_);
  if (durability_ != Durability::power) {
    replace_manifest(directory_, text, FileSync::none, durability_);
  } else {
    // Both: an earlier commit without this durability may have left either of them unsynced.
    drives_.sync_data();
    replace_manifest(directory_, text, FileSync::fsync, durability_);
    on_disk_ = OnDisk::in_doubt;
    sync_path(directory_);
  }
  on_disk_ = OnDisk::current;
}

void SwapStore::Impl::mark_committed(std::int64_t step, std::string metadata) {
  for (ShardSlots& slots : shards_) slots.mark_committed();
  step_ = step;
  metadata_ = std::move(metadata);
}

namespace {

void check_step(std::int64_t step) {
  SLUICE_CHECK(step >= 0, "a commit of step " + std::to_string(step) + ": expected 0 or more");
}

}  // namespace

void SwapStore::Impl::check_nothing_prepared() const {
  if (on_disk_ != OnDisk::prepared) return;
  throw StorageError(directory_, "step " + std::to_string(prepared_->step) +
                                     " is written, and it is not known whether all ranks "
                                     "committed it: end this run and resume");
}

void SwapStore::Impl::commit(std::int64_t step, const std::string& metadata) {
  check_step(step);
  check_writable("commit");
  {
    MutexLock lock(mutex_);
    check_nothing_prepared();
  }
  for (const ShardSlots& slots : shards_) slots.check_committable();
  std::string kept_metadata =
      metadata;  // copied first: nothing may throw once the manifest is replaced
  if (durability_ == Durability::none) {
    MutexLock lock(mutex_);
    if (on_disk_ == OnDisk::current) on_disk_ = OnDisk::outdated;
  } else {
    write_manifest(step, metadata);
  }
  mark_committed(step, std::move(kept_metadata));
}

std::uint64_t SwapStore::Impl::prepare_commit(std::int64_t step, const std::string& metadata) {
  check_step(step);
  check_writable("prepare_commit");
  {
    MutexLock lock(mutex_);
    check_nothing_prepared();
  }
  for (const ShardSlots& slots : shards_) slots.check_committable();
  // Without a second slot, the step that is committed in memory is the one that lies there.
  SLUICE_CHECK(durability_ != Durability::none || (is_closable() && step == step_),
               directory_ + ": with durability none, only the last commit() can be prepared");
  const std::string text = to_text(manifest_of(step, metadata));
  Prepared prepared{.step = step, .metadata = metadata};
  drives_.check_still_there();
  drives_.mark_committed();
  MutexLock lock(mutex_);
  const bool durable = durability_ == Durability::power;
  if (durable) drives_.sync_data();
  if (durability_ == Durability::none) drives_.check_written();
  replace_file(prepared_path(directory_), text,
               {.mode = kStoreFileMode,
                .sync = durable ? FileSync::fsync : FileSync::none,
                .advice_if_full = "make space; what was committed before is whole"});
  prepared.before = std::exchange(on_disk_, OnDisk::prepared);
  prepared_ = std::move(prepared);
  try {
    if (durable) sync_path(directory_);
  } catch (...) {
    drop_prepared();  // nobody has its digest yet
    throw;
  }
  return digest_of(text);
}

void SwapStore::Impl::finish_commit() {
  std::optional<Prepared> finished;
  {
    MutexLock lock(mutex_);
    SLUICE_CHECK(on_disk_ == OnDisk::prepared, directory_ + ": no commit is prepared");
    const std::string path = manifest_path(directory_);
    SLUICE_SYSCALL(::rename(prepared_path(directory_).c_str(), path.c_str()), path);
    // Before the next manifest takes the prepared name: else loss of power could leave neither this
    // one nor its name.
    if (durability_ == Durability::power) sync_path(directory_);
    on_disk_ = OnDisk::current;
    finished.swap(prepared_);
  }
  mark_committed(finished->step, std::move(finished->metadata));
}

void SwapStore::Impl::abandon_commit() noexcept {
  MutexLock lock(mutex_);
  if (on_disk_ == OnDisk::prepared) drop_prepared();
}

void SwapStore::Impl::drop_prepared() noexcept {
  remove_file_quietly(prepared_path(directory_));
  on_disk_ = prepared_->before;
  prepared_.reset();
}

void SwapStore::Impl::check_committed() const {
  const Manifest manifest = require_manifest(directory_);
  const auto is_known = [this] {
    MutexLock lock(mutex_);
    return on_disk_ == OnDisk::current || on_disk_ == OnDisk::unsynced;
  };
  if (manifest.step != step_ && is_known()) {
    throw StorageError(directory_, "another run has committed step " +
                                       std::to_string(manifest.step) + " there since");
  }
  check_committed_files(drives_.stripe(), manifest, layout_of(manifest));
}

bool SwapStore::Impl::is_closable() const {
  for (const ShardSlots& slots : shards_) {
    SLUICE_CHECK(!slots.changed(), "shard \"" + slots.spec().name +
                                       "\" was written after the last commit: commit it before "
                                       "closing, else " +
                                       directory_ + " cannot be resumed");
    if (!slots.committed_slot()) return false;
  }
  return true;
}

// Hears what the drive tells at a close about bytes of the committed state.
void SwapStore::Impl::check_committed_bytes() const {
  try {
    drives_.check_written();
  } catch (const IoError& error) {
    if (is_without_descriptors(error)) throw;
    throw StorageError(directory_, "what was written last may be lost (" +
                                       std::string(error.what()) + "): sluice nvme verify " +
                                       run_of(directory_) + " tells whether step " +
                                       std::to_string(step_) +
                                       " is whole there. If it is not, go on from a checkpoint");
  }
}

void SwapStore::Impl::close_cleanly() {
  if (access_ == Access::read_only) return;
  if (durability_ != Durability::none) return check_committed_bytes();
  if (!is_closable()) return;
  drives_.check_written();  // before the manifest names these bytes
  {
    MutexLock lock(mutex_);
    if (on_disk_ == OnDisk::current) return;
  }
  write_manifest(step_, metadata_);
}

}  // namespace sluice::offload
