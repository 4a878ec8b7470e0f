#pragma once
// SwapStore: a directory that holds the training state on disk. A run may be killed at any moment;
// the last commit stays valid.
//
// Shards are keyed by name. Each shard lies at the same offset in two files (slots). A step writes
// the slot that is not committed; a small manifest, checksummed and replaced atomically, commits
// that slot. With Durability::none there is one slot, written in place, and the directory can be
// resumed only after close_cleanly(). The files are the checkpoint: a directory that was written
// and committed once is a checkpoint.
//
//   DIR/lock            flock of the run that uses the directory; holds its process id
//   DIR/states.0.swap   slot 0 of every shard, allocated up front
//   DIR/states.1.swap   slot 1 (not with Durability::none)
//   DIR/manifest.json   what is committed: step, slots, lengths, checksums, the run's metadata
//   DIR/manifest.prepared.json   between the two phases of a commit over several ranks
//
// At a SwapPlace of several directories, the slot files are striped over all of them. Each
// directory has a lock, and a DIR/stripe.json that says which part of which store it holds.
//
// A store has no memory for the step: reads and writes use buffers of the caller.
//
// The first write of a shard's update and each commit throw StorageError when the lock of a
// directory was removed. Another run may be at work there then.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sluice/base/ticket.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/offload/swap_place.hpp"
#include "sluice/offload/swap_state.hpp"
#include "sluice/offload/tiered_bytes.hpp"

namespace sluice::offload {

// Thread-safe for different shards. The caller orders calls for one shard, except that begin_read,
// begin_write and check of different chunks may run at the same time. The caller orders commit and
// close_cleanly with all other calls.
class SwapStore {
 public:
  // Whether `directory` holds a committed state. Throws StorageError when its manifest is damaged,
  // and when `directory` is a further directory of a committed store (the error names the first
  // directory); IoError when `directory` is absent or unreadable.
  static bool holds_committed(const std::string& directory);
  // With `digest`, here and in open_read_only: the state whose manifest has it, which may be
  // prepared only. For the part of one rank, RankManifest has the digest.
  static CommittedState read_committed(const std::string& directory,
                                       std::optional<std::uint64_t> digest = {});
  // The digest of the committed manifest. Throws StorageError when nothing is committed.
  static std::uint64_t committed_digest(const std::string& directory);
  // Ends what a killed run left of a commit in two phases: from here on the state whose manifest
  // has `digest` is the committed one, and a prepared step that not all ranks had is gone. The
  // caller holds the DirectoryLock. Throws StorageError when no manifest has the digest, IoError.
  static void settle_commit(const std::string& directory, std::uint64_t digest);
  // Disk bytes that a new store of these shards needs: the slot files, and room for two manifests.
  static std::uint64_t disk_bytes(std::span<const ShardSpec> shards, Durability durability);

  // The files in `directory` that a store or a ScratchFile made, without the lock. The holder of
  // the DirectoryLock may delete them. Throws IoError.
  static std::vector<std::string> list_files(const std::string& directory);

  // A new store, with nothing committed. Locks the directory and allocates the files. Removes the
  // uncommitted files of a killed run, with a line in the log. `io` outlives the store. Throws
  // - StorageError when another run has the directory (the error names its process id), and when
  //   the directory holds a committed state: open() continues from that one, clean_directory()
  //   removes it; with Durability::power also where a file system has no fsync of directories;
  // - IoError, naming needed and free bytes, on a full disk; then nothing that was there before is
  //   lost;
  // - InvalidArgument without a shard, on a shard without bytes, and on names that are empty, too
  //   long or repeated.
  static std::unique_ptr<SwapStore> create(const SwapPlace& place, nvme::IoEngine& io,
                                           std::vector<ShardSpec> shards, Durability durability,
                                           nvme::DirectIo direct);
  // The committed state, to continue from, with any durability. Durability::none continues in the
  // committed slots; the others allocate a second slot file if there is none yet. Throws
  // StorageError when there is no committed state, when the manifest is damaged, and when a file
  // that holds committed shards is absent or shorter than committed; with Durability::power as
  // create().
  static std::unique_ptr<SwapStore> open(const SwapPlace& place, nvme::IoEngine& io,
                                         Durability durability, nvme::DirectIo direct);
  // The committed state, for export. Needs no right to write; refuses begin_write,
  // finish_update and commit (InvalidArgument). Takes the lock shared: throws StorageError while a
  // run has the directory.
  static std::unique_ptr<SwapStore> open_read_only(const SwapPlace& place, nvme::IoEngine& io,
                                                   std::optional<std::uint64_t> digest = {});

  // Unlocks; commits nothing. Every ticket of this store must have ended.
  ~SwapStore();
  SwapStore(const SwapStore&) = delete;
  SwapStore& operator=(const SwapStore&) = delete;

  const std::string& directory() const;
  SwapPlace place() const;  // with the weights of the stripe
  std::size_t shard_count() const;
  const ShardSpec& shard(std::size_t index) const;
  std::size_t index_of(const std::string& name) const;  // throws InvalidArgument
  std::int64_t committed_step() const;                  // 0 before the first commit
  // The step that a process would resume here if this one ended now; 0: none. With Durability::none
  // there is none from the first write until close_cleanly(). Thread-safe.
  std::int64_t resumable_step() const;
  // The step of prepare_commit(), until finish_commit() or abandon_commit(): a process would resume
  // that one or resumable_step(). Thread-safe.
  std::optional<std::int64_t> prepared_step() const;
  const std::string& committed_metadata() const;
  std::uint64_t file_bytes() const;  // size of the slot files, on all drives
  // Bytes written by the engines of all runs in this directory, scratch files and this run's bytes
  // so far included. Starts at 0 in a cleared directory.
  std::uint64_t written_bytes() const;
  Durability durability() const;
  // Empty, or why the files are not opened with O_DIRECT.
  std::string why_buffered() const;

  // Reads the latest bytes of a shard: the updated bytes if finish_update was called since the
  // commit, else the committed bytes (zeros in a new store). Follows the rules of
  // IoEngine::begin_read.
  Ticket begin_read(std::size_t shard, std::uint64_t offset_bytes, std::span<std::byte> data);
  // Writes to the slot that is not committed. `offset_bytes` is a multiple of kChecksumChunkBytes,
  // and so is the size unless the range ends the shard. The checksums of the chunks are computed
  // here, on the caller's thread. A shard's first update after a commit must write the whole shard.
  // Further updates before the next commit, and all updates with Durability::none, write in place:
  // reads may see new bytes before finish_update. The first write with Durability::none removes the
  // manifest.
  Ticket begin_write(std::size_t shard, std::uint64_t offset_bytes,
                     std::span<const std::byte> data);
  // With the checksum_of() of each chunk of `data`, which the caller has computed on its own
  // threads. Throws InvalidArgument for another number of checksums.
  Ticket begin_write(std::size_t shard, std::uint64_t offset_bytes, std::span<const std::byte> data,
                     std::span<const std::uint64_t> checksums);
  // From here on, reads of this shard see the written bytes. Call after the shard's writes have
  // finished without an error. Throws InvalidArgument naming the first chunk that was not written
  // since the commit.
  void finish_update(std::size_t shard);
  // Compares `data`, the bytes at `offset_bytes` of the latest state, with their checksums (with
  // zeros in a new store); the range is aligned to chunks as in begin_write. Throws StorageError
  // naming shard, file and offset when they differ.
  void check(std::size_t shard, std::uint64_t offset_bytes, std::span<const std::byte> data) const;

  // Throws StorageError when a process could not resume what this store committed, as far as the
  // manifest and the lengths of files tell: another run has committed since, or a file that holds
  // committed shards is absent or cut off. IoError when that cannot be found out.
  void check_committed() const;

  // Makes the latest bytes of all shards the committed state of `step`, which may be below that of
  // the commit before. A checkpoint of a run
  // before its first step has step 0, which committed_step() and resumable_step() also say where
  // there is none: holds_committed() tells. Blocks. Throws InvalidArgument for a step below 0, and
  // when a shard was never written or an update was begun and not finished; throws IoError. After
  // an exception the previous commit stays valid. With Durability::power and a directory that
  // cannot be synced, loss of power may leave this commit or the previous one, both complete;
  // writes are refused until a commit succeeds. With Durability::none, commit() only remembers step
  // and metadata.
  void commit(std::int64_t step, const std::string& metadata);
  // With Durability::none: writes the manifest of the last commit(), so the directory can be
  // resumed. Throws InvalidArgument when something was written after that commit; throws IoError.
  // With another durability the manifest is there. With each, a drive that tells at a close what it
  // did not write is heard here: IoError before the manifest is written, else StorageError.
  void close_cleanly();

  // A commit in two phases, for a store that is the part of one rank. All ranks make the first
  // phase, then one of them calls replace_rank_manifest(), then all make the second.
  // First phase: writes the manifest of `step` beside the committed one, and returns its digest.
  // Both steps stay whole: until the second phase, writes throw StorageError. With
  // Durability::none, `step` is that of the last commit(), and nothing was written since. Blocks.
  // Throws as commit(); then nothing new is prepared. With a commit that is prepared already, this
  // and commit() throw StorageError and leave it.
  std::uint64_t prepare_commit(std::int64_t step, const std::string& metadata);
  // Second phase, once a RankManifest names the digest: the prepared step is the committed one.
  // Throws IoError; then the store refuses writes, and settle_commit() ends the commit later.
  void finish_commit();
  // Second phase instead, when it is certain that no RankManifest names the digest. Does nothing
  // when no commit is prepared.
  void abandon_commit() noexcept;
  // With Durability::power: makes the state of the run before survive loss of power. The first
  // write does so for this store; with several ranks, all do it before any of them writes. Blocks.
  // Throws IoError.
  void sync_committed();

 private:
  class Impl;
  explicit SwapStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::offload
