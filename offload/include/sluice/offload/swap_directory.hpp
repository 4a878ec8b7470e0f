#pragma once
// Maintenance of a swap directory or a checkpoint (swap_store.hpp) that no run is using: check it,
// and remove the files of dead runs. Only SwapStore reads or changes states.
//
// verify_directory and clean_directory hold the DirectoryLock while they work. They throw a
// StorageError that names the process of a run that has the directory.
//
// Thread-safe: free functions without state.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sluice/nvme/io_engine.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "sluice/offload/swap_place.hpp"
#include "sluice/offload/swap_state.hpp"

namespace sluice::offload {

struct VerifyReport {
  std::int64_t step = 0;
  std::size_t shard_count = 0;
  std::uint64_t checked_bytes = 0;    // read and compared with their checksums
  std::vector<DamagedRange> damaged;  // by shard, then offset; empty: all is well
};

// Reads all committed bytes, of all ranks, and compares lengths and checksums; blocks. Changes
// nothing, needs no right to write, and holds the lock shared. An absent or truncated slot file is
// reported as damage, and the other files are still checked. Throws StorageError when nothing is
// committed or the manifest is damaged; IoError, also for a read that fails for another reason than
// its bytes (too little memory, say); OutOfMemory when `staging` has no room for one chunk of
// kChecksumChunkBytes. Uses up to sixteen chunks of `staging`.
// Fills `report`, which is empty before; after an exception, it has the damage found until then.
void verify_directory(const std::string& directory, nvme::IoEngine& io, MemoryPool& staging,
                      const VerifyProgress& progress, VerifyReport& report);

// leftovers: the files that no committed state needs, in the directory and in folders of ranks:
// scratch files, an unfinished manifest, slot files without a committed shard, the file of a bench,
// and unfinished checkpoints below the directory with their folders. everything: also the committed
// state, the lock and the finished checkpoints; the directory itself is removed if it is a
// checkpoint's own folder.
enum class CleanScope { leftovers, everything };
enum class CleanMode { list, remove };

struct RemovableFile {
  std::string path;  // a file, or a folder that is empty when its turn comes
  std::uint64_t size_bytes = 0;
  std::uint64_t disk_bytes = 0;  // blocks it occupies, which its removal frees
  std::string what;              // "scratch of a run", for people
  bool is_folder = false;
};

struct CleanReport {
  // In the order in which they are removed; with CleanMode::remove, those that are gone.
  std::vector<RemovableFile> files;
  // The committed step, which CleanScope::leftovers preserves and CleanScope::everything removes.
  // Empty: nothing is committed; with CleanScope::everything, also when the manifest is damaged.
  std::optional<std::int64_t> committed_step;
  // Further directories of a striped run that are absent or hold no part of it; their files stay.
  std::vector<std::string> missing_directories;
  // Files of a bench that is measuring now; they stay.
  std::vector<std::string> measured_files;
  // The committed steps of the checkpoints below the directory, oldest first; they stay or go as
  // committed_step does.
  std::vector<std::int64_t> checkpoint_steps;
};

// Finds the files of `scope`, and with CleanMode::remove removes them: the manifest first, so that
// a half removed store never looks committed, and the lock last. Leaves alone: files that no store,
// ScratchFile or bench made, the file of a bench that is measuring, anything that is not a regular
// file, and folders that hold one of these.
// Throws StorageError, before anything is removed,
// - when a run or a reader has the directory, or a checkpoint from which something is to go (with
//   CleanMode::list: a run only);
// - when the manifest is damaged and the scope is CleanScope::leftovers, because the committed
//   files are unknown then;
// - when the manifest is not that of a store.
// Throws IoError naming a file that could not be removed.
CleanReport clean_directory(const std::string& directory, CleanScope scope, CleanMode mode);

// Whether `path` is a file of a run, or would be: ranks.json, a lock, or a name of a run's file
// beside a lock, a manifest or a stripe.json. Follows links. No command replaces such a file.
// Throws IoError when the answer cannot be found out.
bool is_run_file(const std::string& path);

// Whether `directory` has files of states, committed or not, or folders of ranks. Throws IoError.
bool holds_state_files(const std::string& directory);

// The folders of a rank in the directories of `swap` (rank_folder()); `swap` itself for one rank.
SwapPlace rank_place(const SwapPlace& swap, int rank, int world_size);
// Whether SwapStore finds all parts of the committed store whose first directory is that of
// `place`. continued: as SwapStore::open() would; read: each further part in any directory of
// `place`, or else where the store's stripe.json says. With `digest`: as for
// SwapStore::read_committed(). Reads no states, locks nothing. Throws StorageError that says which
// part is not there, and for a copy of a store that is there as well.
enum class PartsUse { continued, read };
void check_parts(const SwapPlace& place, std::optional<std::uint64_t> digest, PartsUse use);
// The states in `swap.directory` that ranks of another number than `world_size` left: where their
// drives are mounted elsewhere now, in directories of `swap`, their stripe.json are written anew,
// with a line in the log. So they are read and removed there. SwapStore::open() does this for the
// store that it opens. The caller holds the DirectoryLock exclusively. Throws IoError.
void follow_moved_drives(const SwapPlace& swap, int world_size);

// Removes the scratch files and unfinished manifests of a killed run, with one line in the log. The
// caller holds the DirectoryLock exclusively. SwapStore does this itself. Throws IoError.
void remove_dead_files(const std::string& directory);
// Removes the states in `directory` that ranks of another number than `world_size` left: of one
// rank, in it, and of several, in folders (RankManifest). Call it when a step of `world_size` ranks
// is committed. The caller holds the DirectoryLock exclusively. Throws IoError.
void remove_other_states(const std::string& directory, int world_size);
// Removes the checkpoints below `directory` that a killed run did not finish, with one line in the
// log. The caller holds the DirectoryLock exclusively. Throws IoError.
void remove_dead_checkpoints(const std::string& directory);

}  // namespace sluice::offload
