#pragma once
// What can be done with a swap directory or a checkpoint (swap_store.hpp) while no run is at work
// in it: check it, and clear away what a dead run left. Not a way to read or change states: that is
// SwapStore's.
//
// verify_directory and clean_directory hold the DirectoryLock while they work, and throw
// StorageError naming the process of a run that has it.
// Thread-safe: free functions without state.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sluice/nvme/io_engine.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "sluice/offload/swap_store.hpp"

namespace sluice::offload {

// Called on the caller's thread, after every chunk; what it throws ends the check.
using VerifyProgress = std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

struct VerifyReport {
  std::int64_t step = 0;
  std::size_t shard_count = 0;
  std::uint64_t checked_bytes = 0;    // read and compared with their checksums
  std::vector<DamagedRange> damaged;  // by shard, then offset; empty: all is well
};

// Reads everything that is committed and compares lengths and checksums; blocks. Changes nothing,
// needs no right to write, and holds the lock shared. A slot file that is absent or cut off is
// damage like any other, and the rest is still checked. Throws StorageError when nothing is
// committed or the manifest is damaged, IoError, OutOfMemory when `staging` has no room for one
// chunk of kChecksumChunkBytes; it uses up to sixteen.
VerifyReport verify_directory(const std::string& directory, nvme::IoEngine& io, MemoryPool& staging,
                              const VerifyProgress& progress);

// leftovers: what no committed state needs: scratch files, a manifest that was not finished, slot
// files in which no committed shard lies, the file of a bench; and, with their folders, checkpoints
// below the directory that were not finished. everything: also what is committed, the lock and the
// checkpoints; the directory holds no run then, and goes too when it is a checkpoint's own folder.
enum class CleanScope { leftovers, everything };
enum class CleanMode { list, remove };

struct RemovableFile {
  std::string path;  // of a file, or of a folder that is empty when its turn comes
  std::uint64_t size_bytes = 0;
  std::uint64_t disk_bytes = 0;  // blocks it occupies: what its removal frees
  std::string what;              // "scratch of a run", for people
  bool is_folder = false;
};

struct CleanReport {
  std::vector<RemovableFile> files;  // in the order in which they are removed
  // What was committed: it stays with CleanScope::leftovers, and goes with everything. Empty:
  // nothing was, or (everything) the manifest is damaged.
  std::optional<std::int64_t> committed_step;
  // Of a striped run: further directories that are not there, or have no part of it, and keep what
  // they have.
  std::vector<std::string> missing_directories;
  // The same of the checkpoints below the directory, the oldest first.
  std::vector<std::int64_t> checkpoint_steps;
};

// Finds the files of `scope`, and removes them unless `mode` says otherwise: the manifest first, so
// that nothing half removed looks committed, the lock last. Files that are not a store's, a
// ScratchFile's or a bench's, whatever is no regular file, and folders that hold any of these are
// left alone. Throws StorageError, before anything is removed, when a run or a reader
// (CleanMode::list: a run) has the directory or a checkpoint of which something is to go, when with
// CleanScope::leftovers the manifest is damaged, so that nobody knows what is committed,
// and when it is not the manifest of a store; IoError naming what could not be removed.
CleanReport clean_directory(const std::string& directory, CleanScope scope, CleanMode mode);

// Whether the file is one of those that a run keeps in its directory: named like them, beside a
// lock, a manifest or a label of a stripe; links are followed. Throws IoError when that cannot be
// found out.
bool is_run_file(const std::string& path);

// For a directory whose DirectoryLock the caller holds exclusively: removes the scratch files and
// unfinished manifests that a killed run left, with one line in the log. SwapStore does so itself.
// Throws IoError.
void remove_dead_files(const std::string& directory);
// The same for a directory of checkpoints: removes those that a killed run did not finish. Throws
// IoError.
void remove_dead_checkpoints(const std::string& directory);

}  // namespace sluice::offload
