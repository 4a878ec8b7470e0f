#pragma once
// The state of an open SwapStore. swap_store.cpp has its start, reads and updates, store_commit.cpp
// what becomes of the manifest. SwapStore's functions that need no open store are in
// directory/committed_state.cpp. Threads: as SwapStore.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sluice/base/mutex.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "sluice/offload/swap_store.hpp"
#include "swap/manifest.hpp"
#include "swap/shard_slots.hpp"
#include "swap/store_drives.hpp"

namespace sluice::offload {

class SwapStore::Impl {
 public:
  enum class Access { read_only, read_write };

  Impl(SwapPlace place, nvme::IoEngine& io, Access access, Durability durability)
      : drives_(std::move(place),
                access == Access::read_only ? DirectoryLock::Mode::shared
                                            : DirectoryLock::Mode::exclusive,
                durability),
        directory_(drives_.first()),
        io_(io),
        access_(access),
        durability_(durability),
        io_written_before_(io.counters().written_bytes) {}

  void start_new(std::vector<ShardSpec> shards, nvme::DirectIo direct);
  void start_committed(nvme::DirectIo direct, std::optional<std::uint64_t> digest);
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
  std::optional<std::int64_t> prepared_step() const {
    MutexLock lock(mutex_);
    return prepared_ ? std::optional(prepared_->step) : std::nullopt;
  }
  const std::string& metadata() const { return metadata_; }
  Durability durability() const { return durability_; }
  std::string why_buffered() const { return drives_.why_buffered(); }

  Ticket begin_read(std::size_t index, std::uint64_t offset_bytes, std::span<std::byte> data);
  Ticket begin_write(std::size_t index, std::uint64_t offset_bytes, std::span<const std::byte> data,
                     std::span<const std::uint64_t> checksums);
  void finish_update(std::size_t index);
  void check(std::size_t index, std::uint64_t offset_bytes, std::span<const std::byte> data) const;
  void check_committed() const;
  void commit(std::int64_t step, const std::string& metadata);
  void close_cleanly();
  std::uint64_t prepare_commit(std::int64_t step, const std::string& metadata);
  void finish_commit();
  void abandon_commit() noexcept;
  void sync_committed();

 private:
  // The state of DIR/manifest.json.
  //   current     it names the last commit
  //   outdated    Durability::none: it names an earlier commit of the same bytes, or its removal is
  //               not durable yet
  //   absent      nothing is committed yet, or it was removed before the first write in place
  //   unsynced    Durability::power: it names the commit of an earlier run, which may not be
  //               durable yet
  //   in_doubt    it names a commit that loss of power may take back: both slots are in use
  //   prepared    a prepared manifest lies beside it, and one of the two is committed on all ranks:
  //               both slots are in use
  enum class OnDisk { current, outdated, absent, unsynced, in_doubt, prepared };

  struct Prepared {
    std::int64_t step = 0;
    std::string metadata;
    OnDisk before = OnDisk::absent;
  };

  void check_index(std::size_t index) const;
  void check_writable(const char* operation) const;
  void index_names();
  // Brings the manifest into a state in which the slots that are not committed may be changed.
  void prepare_write();
  void make_durable() SLUICE_REQUIRES(mutex_);
  void check_nothing_prepared() const SLUICE_REQUIRES(mutex_);
  void drop_prepared() noexcept SLUICE_REQUIRES(mutex_);  // what prepare_commit() left
  void check_committed_bytes() const;
  // False when nothing was ever committed. Throws InvalidArgument when something was written since.
  bool is_closable() const;
  void mark_committed(std::int64_t step, std::string metadata);
  Manifest manifest_of(std::int64_t step, const std::string& metadata) const;
  void write_manifest(std::int64_t step, const std::string& metadata);
  void put_manifest(const std::string& text);

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
  std::optional<Prepared> prepared_ SLUICE_GUARDED_BY(mutex_);  // set while on_disk_ is prepared
};

}  // namespace sluice::offload
