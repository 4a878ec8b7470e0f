// Which files are a run's.

#include <filesystem>
#include <system_error>

#include "sluice/base/error.hpp"
#include "sluice/offload/swap_directory.hpp"
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

}  // namespace sluice::offload
