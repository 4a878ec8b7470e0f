#pragma once
// SwapStore: a directory that holds the training state on disk and survives being killed at any
// moment.
//
// Shards are keyed by name. Each lies at the same offset in two files (slots): a step writes the
// slot that is not committed, and a small manifest, checksummed and replaced atomically, commits
// it. With Durability::none there is one slot, written in place, and the directory can be resumed
// only after close_cleanly(). The files are the checkpoint: a directory written once and committed
// is one.
//
//   DIR/lock            flock of the run that uses the directory; holds its process id
//   DIR/states.0.swap   slot 0 of every shard, allocated up front
//   DIR/states.1.swap   slot 1 (not with Durability::none)
//   DIR/manifest.json   what is committed: step, slots, lengths, checksums, the run's metadata
//
// At a SwapPlace of several directories the slot files are striped over all of them; each has a
// lock, and DIR/stripe.json, which says what part of which store it has.
//
// It is not the memory of the step: reads and writes go to whatever buffers the caller has.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sluice/base/ticket.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/offload/swap_place.hpp"
#include "sluice/offload/tiered_bytes.hpp"

namespace sluice::offload {

// What a committed step survives: a killed process; loss of power as well (fdatasync of the data,
// then manifest, rename, fsync of the directory); nothing.
enum class Durability { process, power, none };

struct ShardSpec {
  std::string name;              // unique, at most 255 bytes
  std::uint64_t size_bytes = 0;  // at least 1
};

// Checksums (XXH3, 64 bits) are kept for every chunk of this size, and for the shorter last one.
inline constexpr std::uint64_t kChecksumChunkBytes = 1U << 20U;
// Of a chunk, by the fastest kernel that the processor has.
std::uint64_t checksum_of(std::span<const std::byte> bytes);

// What a manifest says; read without opening the store.
struct CommittedState {
  std::int64_t step = 0;
  std::string metadata;  // the JSON text that was given to commit()
  std::vector<ShardSpec> shards;
  Durability durability = Durability::process;
  std::uint64_t written_bytes = 0;  // SwapStore::written_bytes() at that commit
};

// Consecutive chunks of one shard that are damaged in the same way.
struct DamagedRange {
  std::string shard;
  std::string path;
  std::uint64_t offset_bytes = 0;  // within the shard
  std::uint64_t size_bytes = 0;
  std::uint64_t file_offset_bytes = 0;
  std::string why;  // "differs from its checksum", for people
};

// Thread-safe for different shards; calls for one shard are the caller's to order, except that
// begin_read, begin_write and check of different chunks may run at the same time. commit,
// close_cleanly and verify are to be ordered with everything.
class SwapStore {
 public:
  // Whether `directory` holds a committed state. Throws StorageError when the manifest is there but
  // damaged, and when it is a further directory of a committed store, naming the first; IoError
  // when the directory is absent or unreadable.
  static bool holds_committed(const std::string& directory);
  static CommittedState read_committed(const std::string& directory);
  // Bytes of disk that a new store of these shards needs: the slot files, and room for two
  // manifests.
  static std::uint64_t disk_bytes(std::span<const ShardSpec> shards, Durability durability,
                                  std::size_t drives = 1);

  // The files in `directory` that a store or a ScratchFile made, the lock excepted: what may be
  // deleted by whoever holds the DirectoryLock. Throws IoError.
  static std::vector<std::string> list_files(const std::string& directory);

  // A new store: locks the directory (StorageError naming the holder's process id when another run
  // has it), refuses a committed state (StorageError), allocates the files (IoError naming needed
  // and free bytes on a full disk; then nothing that was there before is lost). What a killed run
  // left without having committed is removed, with a line in the log. Nothing is committed yet.
  // `io` outlives it. Throws InvalidArgument on no shard, a shard without bytes, names that are
  // empty, too long or repeated.
  static std::unique_ptr<SwapStore> create(const SwapPlace& place, nvme::IoEngine& io,
                                           std::vector<ShardSpec> shards, Durability durability,
                                           nvme::DirectIo direct);
  // The committed state, for going on from it, with any durability: `none` goes on in the slots
  // that are committed, and the others allocate a second slot file where there is none yet. Throws
  // StorageError when there is no committed state, when the manifest is damaged, or when a file
  // that holds committed shards is absent or shorter than committed.
  static std::unique_ptr<SwapStore> open(const SwapPlace& place, nvme::IoEngine& io,
                                         Durability durability, nvme::DirectIo direct);
  // The same for export and verify: needs no right to write, and refuses begin_write, finish_update
  // and commit (InvalidArgument). Takes the lock shared: StorageError while a run has the
  // directory.
  static std::unique_ptr<SwapStore> open_read_only(const std::string& directory,
                                                   nvme::IoEngine& io);

  // Unlocks; commits nothing. Every ticket of this store has ended before.
  ~SwapStore();
  SwapStore(const SwapStore&) = delete;
  SwapStore& operator=(const SwapStore&) = delete;

  const std::string& directory() const;
  SwapPlace place() const;  // with the weights of the stripe
  std::size_t shard_count() const;
  const ShardSpec& shard(std::size_t index) const;
  std::size_t index_of(const std::string& name) const;  // throws InvalidArgument
  std::int64_t committed_step() const;                  // 0 before the first commit
  const std::string& committed_metadata() const;
  std::uint64_t file_bytes() const;  // of the slot files, on all drives
  // Written by the engines of all runs in this directory, this one's until now included: also what
  // went to scratch files. A directory that is cleared begins anew.
  std::uint64_t written_bytes() const;
  // Empty, or why the files are not opened with O_DIRECT.
  std::string why_buffered() const;

  // Reads the latest bytes of a shard: those written since the commit once finish_update has been
  // called, else the committed ones (zeros in a new store). Same rules as IoEngine::begin_read.
  Ticket begin_read(std::size_t shard, std::uint64_t offset_bytes, std::span<std::byte> data);
  // Writes to the slot that is not committed. `offset_bytes` is a multiple of kChecksumChunkBytes,
  // the size too unless it ends the shard: the checksums of the chunks are taken here, on the
  // caller's thread. After a commit, a shard's first update must write all of it. With
  // Durability::none, and in updates after the first since a commit, it writes in place: reads may
  // see new bytes before finish_update. The first write with Durability::none removes the manifest.
  Ticket begin_write(std::size_t shard, std::uint64_t offset_bytes,
                     std::span<const std::byte> data);
  // From here on reads of this shard see what was written; call when its writes have finished well.
  // Throws InvalidArgument naming the first chunk that was not written since the commit.
  void finish_update(std::size_t shard);
  // Throws StorageError naming shard, file and offset when `data`, the bytes at `offset_bytes` of
  // the latest state (chunk-aligned as in begin_write), differ from their checksum (from zeros in a
  // new store).
  void check(std::size_t shard, std::uint64_t offset_bytes, std::span<const std::byte> data) const;

  // Makes the latest bytes of all shards the committed state of `step`. Blocks. Throws
  // InvalidArgument when a shard was never written or an update was begun and not finished;
  // IoError; then the previous commit still holds. (With Durability::power and a directory that
  // cannot be synced, loss of power may leave this or the previous one, both whole; writes are
  // refused until a commit succeeds.) With Durability::none it only remembers step and metadata.
  void commit(std::int64_t step, const std::string& metadata);
  // With Durability::none: writes the manifest of the last commit(), so that the directory can be
  // resumed; throws InvalidArgument when something was written after it, IoError. Otherwise, and
  // when nothing was committed, nothing.
  void close_cleanly();

  // Reads everything that is committed and compares checksums; blocks. A chunk that cannot be read
  // is damaged, too. By shard, then offset; empty: all is well. Throws OutOfMemory when `staging`
  // has no room for one chunk. For a directory that nobody has open: verify_directory().
  std::vector<DamagedRange> verify(MemoryPool& staging);

 private:
  class Impl;
  explicit SwapStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A file of fixed ranges that need not survive the run: 16-bit weights, gradients that wait, unit
// inputs. Created in a directory that a SwapStore or DirectoryLock holds, as DIR/scratch.NAME.swap;
// removed on destruction, and what a killed run left by the next SwapStore in the directory.
// Thread-compatible: callers synchronise; the ranges may be used by any thread.
class ScratchFile {
 public:
  // Allocates `size_bytes`, at least 1. Throws IoError naming needed and free bytes on a full disk,
  // InvalidArgument when a file of this name is in use.
  ScratchFile(const SwapPlace& place, const std::string& name, std::uint64_t size_bytes,
              nvme::DirectIo direct);
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  // The next free range, aligned to 4096 bytes: all but the last count as rounded up to that.
  // Throws InvalidArgument beyond the size given at construction.
  FileRange take(std::uint64_t size_bytes);
  const std::string& path() const { return file_.path(); }
  const nvme::StripedFile& file() const { return file_; }

 private:
  nvme::StripedFile file_;
  std::uint64_t size_bytes_;
  std::uint64_t used_bytes_ = 0;
};

// Holds `directory` for this process: an exclusive flock on DIR/lock with the process id in it, as
// SwapStore does; for a directory with scratch files only. Throws StorageError naming the holder,
// or when DIR/lock is a file of something else; IoError when the directory is absent, not a
// directory, or cannot be written. Shared: any number
// of readers and no run; needs no right to write. The lock goes with the process, however it ends;
// the file stays. Thread-compatible: callers synchronise.
class DirectoryLock {
 public:
  enum class Mode { exclusive, shared };
  DirectoryLock(const std::string& directory, Mode mode);

 private:
  UniqueFd fd_;
};

}  // namespace sluice::offload
