#pragma once
// The files of a swap directory: their names, what they take on disk, and the few calls on them
// that are neither data nor manifest. Thread-safe: free functions without state.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::offload {

inline constexpr int kSlotCount = 2;
inline constexpr mode_t kStoreFileMode = 0600;  // of manifests and labels
// The most bytes of a lock file: a process id of fixed width. So one write replaces the whole text,
// and a reader never sees a mixture of two.
inline constexpr std::size_t kLockBytes = 12;

std::string lock_path(const std::string& directory);
std::string manifest_path(const std::string& directory);
// Where a manifest is written before it replaces the old one.
std::string manifest_draft_path(const std::string& directory);
// The manifest of a step that this rank has written, before all ranks have.
std::string prepared_path(const std::string& directory);
// The manifest of all ranks, in the directory of their folders.
std::string rank_manifest_path(const std::string& directory);
// The label of a directory of a striped store: which part of the store it holds.
std::string label_path(const std::string& directory);
// In a further directory of a stripe, the file's name contains the part. So without its label, the
// file is not taken for a leftover. `part` counts from 0, the names from 1.
std::string slot_path(const std::string& directory, int slot, std::size_t part = 0);
// Whether the directory has a file of a further part, whatever its label says.
bool has_part_files(const std::string& directory);
// `name`: of a file, without its directory. Whether a further part of a store has such names.
bool is_part_name(std::string_view name);
// Whether a store or a ScratchFile makes files of that name.
bool is_store_name(std::string_view name);
std::string scratch_path(const std::string& directory, const std::string& name);
// The file of a drive's bench; it belongs to no store.
std::string bench_path(const std::string& directory);

// The directory of all ranks for the folder of one, else `directory`: what messages name, because
// one part alone is no state.
std::string run_of(const std::string& directory);
// "remove the run (sluice nvme clean DIR --committed) to start over", for messages; DIR is
// run_of(directory).
std::string how_to_start_over(const std::string& directory);

struct StoreFile {
  std::string path;
  std::uint64_t disk_bytes = 0;  // blocks it occupies
};

// Files that a store or a ScratchFile made and that are there now, the lock excepted, sorted by
// path. Throws IoError when the directory cannot be read.
std::vector<StoreFile> list_store_files(const std::string& directory);
// Those of list_store_files() that a killed run leaves and nobody reads again: scratch files and
// drafts.
std::vector<StoreFile> list_dead_files(const std::string& directory);
std::uint64_t disk_bytes_of(const std::vector<StoreFile>& files);

// Not a link, a directory, a device. Throws IoError when that cannot be found out.
bool is_regular_file(const std::string& path);
bool file_exists(const std::string& path);           // throws IoError when that cannot be found out
bool directory_exists(const std::string& path);      // false when that cannot be found out
std::string absolute_path(const std::string& path);  // without "." and ".."
// Also by another path, as of a link or a mount. One that is absent is known by its path alone.
bool same_directory(const std::string& a, const std::string& b);
std::uint64_t file_disk_bytes(const std::string& path);    // 0 when it is absent
std::uint64_t file_length_bytes(const std::string& path);  // throws IoError when it is absent
// Whether the folder is gone. One that is absent, has something in it by now, or is a mount point
// or a link, is no error. Waits up to a second for removed files to leave it. Throws IoError.
bool remove_empty_folder(const std::string& path);
// False when that cannot be found out.
bool holds_nothing_but_a_lock(const std::string& directory);
// Removes what an earlier run left, with one line in the log. Throws IoError.
void remove_leftovers(const std::string& directory, const std::vector<StoreFile>& files);

// Throws IoError naming needed and free bytes when `needed_bytes` more do not fit on the
// directory's file system, of which `reclaimed_bytes` are about to be freed.
void check_free_disk(const std::string& directory, std::uint64_t needed_bytes,
                     std::uint64_t reclaimed_bytes);

}  // namespace sluice::offload
