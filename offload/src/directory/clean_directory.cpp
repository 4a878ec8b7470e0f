#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/nvme/bench_file.hpp"
#include "sluice/offload/checkpoint_folder.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "sluice/offload/swap_directory.hpp"
#include "sluice/offload/swap_store.hpp"
#include "swap/manifest.hpp"
#include "swap/store_files.hpp"
#include "swap/stripe.hpp"

namespace sluice::offload {
namespace {

namespace fs = std::filesystem;

// The files beside a manifest that the committed state needs.
struct Committed {
  std::optional<std::int64_t> step;
  std::set<std::string> needed_paths;  // files in which a committed shard lies, and labels
};

void add_needed(const std::string& directory, const Manifest& manifest, Committed& committed) {
  const Stripe stripe = stripe_to_read(directory, manifest);
  for (const std::string& part : stripe.directories) {
    if (stripe.striped()) committed.needed_paths.insert(label_path(part));
    const auto number = static_cast<std::size_t>(&part - stripe.directories.data());
    for (const ManifestShard& shard : manifest.shards)
      committed.needed_paths.insert(slot_path(part, shard.slot, number));
  }
}

Committed committed_in(const std::string& directory) {
  Committed committed;
  if (const std::optional<Manifest> manifest = load_manifest(directory)) {
    committed.step = manifest->step;
    add_needed(directory, *manifest, committed);
  }
  // In a rank's folder, either of the two may be committed on all ranks.
  const std::string prepared = prepared_path(directory);
  if (const std::optional<std::string> text = read_text_file(prepared)) {
    add_needed(directory, parse_manifest(*text, prepared), committed);
    committed.needed_paths.insert(prepared);
  }
  return committed;
}

// For removing everything, what a manifest says is of no importance.
std::optional<std::int64_t> committed_step_if_readable(const std::string& directory) {
  try {
    const std::optional<Manifest> manifest = load_manifest(directory);
    return manifest ? std::optional(manifest->step) : std::nullopt;
  } catch (const StorageError&) {
    return std::nullopt;
  }
}

// Other programs name their files manifest.json too: it is taken for a store's when it begins as
// one, or, damaged, has slot files beside it.
bool has_manifest_of_something_else(const std::string& directory) {
  const std::string path = manifest_path(directory);
  if (!file_exists(path) || begins_as_manifest(path)) return false;
  for (int slot = 0; slot < kSlotCount; ++slot) {
    if (is_regular_file(slot_path(directory, slot))) return false;
  }
  return true;
}

// With CleanScope::leftovers a part that a run may need is left alone; everything takes it where
// its run is not there to be cleared as a whole.
void check_part(const std::string& directory, CleanScope scope) {
  if (scope == CleanScope::leftovers) return check_is_nobodys_part(directory, directory);
  check_is_no_part_of_a_run_that_is_there(directory);
}

void check_manifest_is_a_stores(const std::string& directory) {
  if (!has_manifest_of_something_else(directory)) return;
  throw StorageError(manifest_path(directory),
                     "is not the manifest of a run, and is left as it is, with all that is beside "
                     "it: choose another directory");
}

std::string describe(const std::string& directory, const std::string& path, CleanScope scope) {
  if (path == manifest_path(directory)) return "manifest: what is committed";
  if (path == rank_manifest_path(directory)) return "manifest: what is committed on all ranks";
  if (path == prepared_path(directory)) return "manifest that not all ranks committed";
  if (path == manifest_draft_path(directory)) return "manifest that was not finished";
  if (path == label_path(directory)) return "label of a part of a striped run";
  if (path != slot_path(directory, 0) && path != slot_path(directory, 1) &&
      !is_part_name(fs::path(path).filename().string()))
    return "scratch of a run";
  return scope == CleanScope::everything ? "states" : "states, nothing committed among them";
}

// All files of a store in the directory that may be removed, in the order of removal, but for the
// manifest and the lock.
std::vector<std::string> candidates_in(const std::string& directory) {
  std::vector<std::string> paths;
  for (const StoreFile& file : list_store_files(directory)) {
    if (file.path != manifest_path(directory)) paths.push_back(file.path);
  }
  return paths;
}

void add_file(const std::string& path, const std::string& what, CleanReport& report) {
  if (!is_regular_file(path)) return;
  report.files.push_back({path, file_length_bytes(path), file_disk_bytes(path), what});
}

void add_bench_file(const std::string& directory, CleanReport& report) {
  const std::string path = bench_path(directory);
  if (is_regular_file(path) && nvme::bench_file_in_use(path)) {
    report.measured_files.push_back(path);
  } else {
    add_file(path, "file of a bench", report);
  }
}

// A longer file of this name is something else's.
void add_lock(const std::string& directory, CleanReport& report) {
  const std::string lock = lock_path(directory);
  if (file_exists(lock) && file_length_bytes(lock) <= kLockBytes) add_file(lock, "lock", report);
}

CleanReport find_files(const std::string& directory, CleanScope scope) {
  CleanReport report;
  check_part(directory, scope);
  std::set<std::string> needed_paths;
  if (scope == CleanScope::leftovers) {
    Committed committed = committed_in(directory);
    report.committed_step = committed.step;
    needed_paths = std::move(committed.needed_paths);
  } else {
    check_manifest_is_a_stores(directory);
    report.committed_step = committed_step_if_readable(directory);
  }
  if (scope == CleanScope::everything) {
    const std::string path = manifest_path(directory);
    add_file(path, describe(directory, path, scope), report);
  }
  for (const std::string& part : directories_to_clear(directory, report.missing_directories)) {
    for (const std::string& path : candidates_in(part)) {
      if (needed_paths.count(path) == 0) add_file(path, describe(part, path, scope), report);
    }
    add_bench_file(part, report);
    if (scope == CleanScope::everything && part != directory) add_lock(part, report);
  }
  return report;
}

std::string parent_of(const std::string& path) {
  return path.substr(0, path.rfind('/'));
}

// Mounts of another file system, as drives are. Other mounts are found when they are removed.
bool is_mount_point(const std::string& folder) {
  struct stat own {};
  struct stat parent {};
  return ::stat(folder.c_str(), &own) == 0 && ::stat(parent_of(folder).c_str(), &parent) == 0 &&
         own.st_dev != parent.st_dev;
}

// A checkpoint's or a rank's own folder goes when nothing else is in it than what goes. A link to
// a folder, and a mount point, are their user's.
void add_folder(const std::string& folder, const std::string& what, CleanReport& report) {
  if (fs::is_symlink(folder) || is_mount_point(folder)) return;
  const auto goes = [&](const fs::path& path) {
    return std::any_of(report.files.begin(), report.files.end(),
                       [&](const RemovableFile& file) { return file.path == path; });
  };
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!goes(fs::path(folder) / entry.path().filename())) return;
  }
  report.files.push_back({folder, 0, file_disk_bytes(folder), what, true});
}

CleanReport find_removable(const std::string& directory, CleanScope scope);

bool has_manifest(const std::string& directory) {
  return file_exists(manifest_path(directory)) || file_exists(rank_manifest_path(directory));
}

// No run needs it: it was not finished, or its removal was not. A finished checkpoint that lost its
// manifest is not dead: the manifest may come back from a backup.
bool is_dead(const CheckpointFolder& folder) {
  return folder.is_draft || (!has_manifest(folder.path) && holds_nothing_but_a_lock(folder.path));
}

void add_measured(const CleanReport& from, CleanReport& to) {
  to.measured_files.insert(to.measured_files.end(), from.measured_files.begin(),
                           from.measured_files.end());
}

void add_checkpoint(const CheckpointFolder& folder, CleanScope scope, CleanReport& report) {
  if (fs::is_symlink(folder.path) || has_manifest_of_something_else(folder.path)) return;
  const bool dead = is_dead(folder);
  if (!dead && scope == CleanScope::leftovers && !has_manifest(folder.path)) return;
  CleanReport found = find_removable(folder.path, dead ? CleanScope::everything : scope);
  if (!dead && found.committed_step) report.checkpoint_steps.push_back(*found.committed_step);
  for (RemovableFile& file : found.files) {
    if (dead) file.what = "checkpoint that was not finished";
    report.files.push_back(std::move(file));
  }
  add_measured(found, report);
}

void move_files(CleanReport& from, CleanReport& to) {
  to.files.insert(to.files.end(), from.files.begin(), from.files.end());
  to.missing_directories.insert(to.missing_directories.end(), from.missing_directories.begin(),
                                from.missing_directories.end());
  add_measured(from, to);
}

// One rank's store with its lock and folder. A striped one has a folder on each drive. Returns the
// step of the rank's part.
std::optional<std::int64_t> add_rank_folder(const RankFolder& folder, CleanScope scope,
                                            CleanReport& report) {
  if (has_manifest_of_something_else(folder.path)) return std::nullopt;
  CleanReport found = find_files(folder.path, scope);
  if (scope == CleanScope::everything) {
    std::set<std::string> folders{folder.path};
    for (const RemovableFile& file : found.files) folders.insert(parent_of(file.path));
    add_lock(folder.path, found);
    for (const std::string& each : folders) {
      if (rank_folder_of(each)) add_folder(each, "folder of a rank", found);
    }
  }
  move_files(found, report);
  return found.committed_step;
}

// The state that is committed on all ranks, or that cannot be read and is to go.
std::optional<RankManifest> rank_manifest_in(const std::string& directory, CleanScope scope) {
  try {
    return load_rank_manifest(directory);
  } catch (const StorageError&) {
    if (scope == CleanScope::leftovers) throw;
    return std::nullopt;
  }
}

// Leftovers are folders of another number of ranks than is committed. Without ranks.json that
// cannot be told: it may lie on another host, so the parts here count as committed.
void add_rank_folders(const std::string& directory, CleanScope scope, CleanReport& report) {
  const std::optional<RankManifest> committed = rank_manifest_in(directory, scope);
  if (committed) report.committed_step = committed->step;
  if (scope == CleanScope::everything)
    add_file(rank_manifest_path(directory),
             describe(directory, rank_manifest_path(directory), scope), report);
  for (const RankFolder& folder : list_rank_folders(directory)) {
    const bool other = committed && folder.world_size != committed->world_size();
    const std::optional<std::int64_t> part =
        add_rank_folder(folder, other ? CleanScope::everything : scope, report);
    if (!committed) report.committed_step = std::max(report.committed_step, part);
  }
}

CleanReport find_removable(const std::string& directory, CleanScope scope) {
  CleanReport report = find_files(directory, scope);
  add_rank_folders(directory, scope, report);
  for (const CheckpointFolder& folder : list_checkpoint_folders(directory)) {
    add_checkpoint(folder, scope, report);
  }
  if (scope == CleanScope::leftovers) return report;
  add_lock(directory, report);
  if (checkpoint_folder_of(directory)) add_folder(directory, "folder of a checkpoint", report);
  if (rank_folder_of(directory)) add_folder(directory, "folder of a rank", report);
  return report;
}

// Locks of a directory and of folders in it, and which of the lock files were not there before.
class HeldLocks {
 public:
  void hold(const std::string& directory) {
    const std::string path = lock_path(directory);
    if (!file_exists(path)) made_paths_.insert(path);
    locks_.try_emplace(directory, directory, DirectoryLock::Mode::exclusive);
  }
  // Holds the folders below `directory` of which something is to go.
  void hold_folders(const std::string& directory, const std::vector<RemovableFile>& files) {
    std::set<std::string> folders;
    for (const RemovableFile& file : files) {
      folders.insert(file.is_folder ? file.path : parent_of(file.path));
    }
    folders.erase(directory);  // held already
    for (const std::string& folder : folders) hold(folder);
  }
  // Lets go of a directory, if it is held. A lock file that was not there before goes first.
  void let_go(const std::string& directory) {
    const auto found = locks_.find(directory);
    if (found == locks_.end()) return;
    if (made_paths_.count(lock_path(directory)) != 0) remove_file(lock_path(directory));
    locks_.erase(found);
  }
  void let_go_of_all() {
    while (!locks_.empty()) let_go(locks_.begin()->first);
  }
  const std::set<std::string>& made_paths() const { return made_paths_; }

 private:
  std::map<std::string, DirectoryLock> locks_;
  std::set<std::string> made_paths_;
};

// Removes the files and folders in their order. Returns those that are gone. A folder goes when its
// lock is closed: FUSE and NFS keep a removed file in its folder as long as it is open.
std::vector<RemovableFile> remove_all(const std::vector<RemovableFile>& files, HeldLocks& locks) {
  std::vector<RemovableFile> gone;
  for (const RemovableFile& file : files) {
    if (file.is_folder) {
      locks.let_go(file.path);
      if (remove_empty_folder(file.path)) gone.push_back(file);
      continue;
    }
    remove_file(file.path);
    gone.push_back(file);
    // Else loss of power could bring the manifest back without the files that it names.
    const std::string directory = parent_of(file.path);
    if (file.path == manifest_path(directory) || file.path == rank_manifest_path(directory))
      sync_path(directory);
  }
  return gone;
}

}  // namespace

CleanReport clean_directory(const std::string& directory, CleanScope scope, CleanMode mode) {
  CleanReport listed;
  {
    // Shared first: it makes no lock file in a directory that is no store's.
    const DirectoryLock lock(directory, DirectoryLock::Mode::shared);
    listed = find_removable(directory, scope);
    if (mode == CleanMode::list || listed.files.empty()) return listed;
  }
  HeldLocks locks;
  locks.hold(directory);
  locks.hold_folders(directory, listed.files);
  CleanReport report = find_removable(directory, scope);
  report.files = remove_all(report.files, locks);
  locks.let_go_of_all();
  // Those were made just now, and are nothing to report.
  std::erase_if(report.files, [&](const RemovableFile& file) {
    return locks.made_paths().count(file.path) != 0;
  });
  return report;
}

bool holds_state_files(const std::string& directory) {
  return !list_store_files(directory).empty() || !list_rank_folders(directory).empty();
}

void remove_dead_files(const std::string& directory) {
  remove_leftovers(directory, list_dead_files(directory));
}

void remove_other_states(const std::string& directory, int world_size) {
  CleanReport report;
  if (world_size == 1) {
    add_file(rank_manifest_path(directory), "", report);
  } else if (!has_manifest_of_something_else(directory)) {
    report = find_files(directory, CleanScope::everything);
    std::erase_if(report.files,
                  [&](const RemovableFile& file) { return file.path == bench_path(directory); });
  }
  for (const RankFolder& folder : list_rank_folders(directory)) {
    if (folder.world_size != world_size) add_rank_folder(folder, CleanScope::everything, report);
  }
  HeldLocks none;
  remove_all(report.files, none);
}

void remove_dead_checkpoints(const std::string& directory) {
  CleanReport report;
  std::uint64_t disk_bytes = 0;
  std::size_t count = 0;
  for (const CheckpointFolder& folder : list_checkpoint_folders(directory)) {
    if (!is_dead(folder)) continue;
    const std::size_t files_before = report.files.size();
    add_checkpoint(folder, CleanScope::leftovers, report);
    if (report.files.size() > files_before) ++count;
  }
  HeldLocks none;
  const std::vector<RemovableFile> gone = remove_all(report.files, none);
  if (gone.empty()) return;
  for (const RemovableFile& file : gone) disk_bytes += file.disk_bytes;
  log(LogLevel::info, directory + ": removed " + counted(count, "checkpoint") + " (" +
                          format_bytes(disk_bytes) + ") that an earlier run did not finish");
}

}  // namespace sluice::offload
