// Which files are a run's, and removing those of a checkpoint.

#include <filesystem>
#include <system_error>

#include "sluice/base/error.hpp"
#include "sluice/offload/checkpoint_folder.hpp"
#include "sluice/offload/swap_directory.hpp"
#include "sluice/offload/swap_state.hpp"
#include "swap/store_files.hpp"

namespace sluice::offload {

namespace {

namespace fs = std::filesystem;

// A longer file of this name is something else's.
bool is_lock(const fs::path& path) {
  if (path != lock_path(path.parent_path().string())) return false;
  std::error_code error;
  return fs::is_regular_file(fs::symlink_status(path, error)) &&
         fs::file_size(path, error) <= kLockBytes && !error;
}

// `path`: in the folder of a checkpoint or of a rank.
bool is_checkpoints(const fs::path& path, const fs::file_status& status) {
  if (fs::is_directory(status)) return false;
  const std::string name = path.filename().string();
  return is_store_name(name) || path == rank_manifest_path(path.parent_path().string()) ||
         is_lock(path) || (fs::is_symlink(status) && rank_folder_of(name));
}

// std::filesystem::remove_all is not usable: libtorch.so of the wheel exports a version of it that
// calls a missing function, and a program that links libtorch.so gets that version.
void remove_files_in(const fs::path& folder, RemovedCheckpoint& removed) {
  std::error_code error;
  const auto note = [&] {
    if (error) removed.error = error;
  };
  std::vector<fs::path> found;
  for (auto entry = fs::directory_iterator(folder, error);
       !error && entry != fs::directory_iterator(); entry.increment(error))
    found.push_back(entry->path());
  note();
  const std::size_t left_before = removed.left.size();
  for (const fs::path& each : found) {
    const fs::file_status status = fs::symlink_status(each, error);
    if (fs::is_directory(status) && rank_folder_of(each.string())) {
      remove_files_in(each, removed);
    } else if (!is_checkpoints(each, status)) {
      removed.left.push_back(each.string());
    } else {
      fs::remove(each, error);
      note();
    }
  }
  if (removed.left.size() > left_before) return;
  fs::remove(folder, error);
  note();
}

}  // namespace

bool is_run_file(const std::string& path) {
  std::error_code error;
  const fs::path file = fs::weakly_canonical(fs::absolute(path), error);
  if (error) throw IoError(error.value(), "realpath", path);
  const std::string directory = file.parent_path().string();
  if (file == rank_manifest_path(directory)) return true;
  if (is_lock(file)) return true;
  const std::string lock = lock_path(directory);
  if (file != lock && !is_store_name(file.filename().string())) return false;
  return file_exists(lock) || file_exists(manifest_path(directory)) ||
         file_exists(label_path(directory));
}

std::string checkpoint_around(const std::string& path) {
  std::error_code error;
  fs::path folder = fs::weakly_canonical(fs::absolute(path), error);
  if (error) throw IoError(error.value(), "realpath", path);
  for (; folder.has_relative_path(); folder = folder.parent_path()) {
    if (checkpoint_folder_of(folder.string()) && fs::is_directory(folder, error) &&
        holds_state_files(folder.string()))
      return folder.string();
  }
  return "";
}

RemovedCheckpoint remove_checkpoint_files(const std::string& folder) {
  RemovedCheckpoint removed;
  std::error_code error;
  if (fs::is_symlink(fs::symlink_status(folder, error))) {
    fs::remove(folder, removed.error);
  } else {
    remove_files_in(folder, removed);
  }
  return removed;
}

}  // namespace sluice::offload
