#include <set>
#include <utility>

#include "manifest.hpp"
#include "sluice/base/error.hpp"
#include "sluice/offload/swap_directory.hpp"
#include "store_files.hpp"

namespace sluice::offload {
namespace {

// What the manifest says of the files beside it.
struct Committed {
  std::optional<std::int64_t> step;
  std::set<std::string> slot_paths;  // files in which a committed shard lies
};

Committed committed_in(const std::string& directory) {
  Committed committed;
  const std::optional<Manifest> manifest = load_manifest(directory);
  if (!manifest) return committed;
  committed.step = manifest->step;
  for (const ManifestShard& shard : manifest->shards) {
    committed.slot_paths.insert(slot_path(directory, shard.slot));
  }
  return committed;
}

// For removing everything, what a manifest says is of no importance.
std::optional<std::int64_t> committed_step_if_readable(const std::string& directory) {
  try {
    return committed_in(directory).step;
  } catch (const StorageError&) {
    return std::nullopt;
  }
}

// Other programs name their files manifest.json too: it is taken for a store's when it begins as
// one, or, damaged, has slot files beside it.
void check_manifest_is_a_stores(const std::string& directory) {
  const std::string path = manifest_path(directory);
  if (!file_exists(path) || begins_as_manifest(path)) return;
  for (int slot = 0; slot < kSlotCount; ++slot) {
    if (is_regular_file(slot_path(directory, slot))) return;
  }
  throw StorageError(path,
                     "is not the manifest of a run, and is left as it is, with all that is beside "
                     "it: choose another directory");
}

std::string describe(const std::string& directory, const std::string& path, CleanScope scope) {
  if (path == manifest_path(directory)) return "manifest: what is committed";
  if (path == manifest_draft_path(directory)) return "manifest that was not finished";
  if (path == bench_path(directory)) return "file of a bench";
  if (path == lock_path(directory)) return "lock";
  if (path != slot_path(directory, 0) && path != slot_path(directory, 1)) return "scratch of a run";
  return scope == CleanScope::everything ? "states" : "states, nothing committed among them";
}

// All that may be removed, in the order of removal.
std::vector<std::string> candidates_in(const std::string& directory, CleanScope scope) {
  std::vector<std::string> paths;
  if (scope == CleanScope::everything) paths.push_back(manifest_path(directory));
  for (const StoreFile& file : list_store_files(directory)) {
    if (file.path != manifest_path(directory)) paths.push_back(file.path);
  }
  paths.push_back(bench_path(directory));
  if (scope == CleanScope::everything) paths.push_back(lock_path(directory));
  return paths;
}

CleanReport find_removable(const std::string& directory, CleanScope scope) {
  CleanReport report;
  std::set<std::string> needed_paths;
  if (scope == CleanScope::leftovers) {
    Committed committed = committed_in(directory);
    report.committed_step = committed.step;
    needed_paths = std::move(committed.slot_paths);
  } else {
    check_manifest_is_a_stores(directory);
    report.committed_step = committed_step_if_readable(directory);
  }
  for (const std::string& path : candidates_in(directory, scope)) {
    if (needed_paths.count(path) != 0 || !is_regular_file(path)) continue;
    report.files.push_back(
        {path, file_length_bytes(path), file_disk_bytes(path), describe(directory, path, scope)});
  }
  return report;
}

}  // namespace

CleanReport clean_directory(const std::string& directory, CleanScope scope, CleanMode mode) {
  {
    // Shared first: it makes no lock file in a directory that is no store's.
    const DirectoryLock lock(directory, DirectoryLock::Mode::shared);
    CleanReport report = find_removable(directory, scope);
    if (mode == CleanMode::list || report.files.empty()) return report;
  }
  const bool had_lock = file_exists(lock_path(directory));
  const DirectoryLock lock(directory, DirectoryLock::Mode::exclusive);
  CleanReport report = find_removable(directory, scope);
  for (const RemovableFile& file : report.files) {
    remove_file(file.path);
    // Else loss of power could bring the manifest back without the files that it names.
    if (file.path == manifest_path(directory)) sync_directory(directory);
  }
  if (!had_lock) {  // it was made just now, and is nothing to report
    remove_file(lock_path(directory));
    std::erase_if(report.files,
                  [&](const RemovableFile& file) { return file.path == lock_path(directory); });
  }
  return report;
}

void remove_dead_files(const std::string& directory) {
  remove_leftovers(directory, list_dead_files(directory));
}

}  // namespace sluice::offload
