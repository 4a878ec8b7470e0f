#include "saved/checkpoint_directory.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <system_error>
#include <vector>

#include "sluice/base/error.hpp"
#include "sluice/base/fd.hpp"
#include "sluice/offload/swap_directory.hpp"

namespace sluice::train {

namespace fs = std::filesystem;

namespace {

// Makes a directory and its missing parents. Their names survive loss of power: else a checkpoint
// that is durable itself could be out of reach.
void make_directories(const fs::path& directory, std::error_code& error) {
  std::vector<fs::path> made;
  std::error_code ignored;
  for (fs::path path = fs::absolute(directory, error); !error && !fs::exists(path, ignored);
       path = path.parent_path())
    made.push_back(path);
  fs::create_directories(directory, error);
  if (error) return;
  for (const fs::path& path : made) sync_path(path.parent_path());
}

}  // namespace

void sync_path(const fs::path& path) {
  const UniqueFd fd(SLUICE_SYSCALL(::open(path.c_str(), O_RDONLY | O_CLOEXEC), path.string()));
  SLUICE_SYSCALL(::fsync(fd.get()), path.string());
}

void hold_checkpoint_directory(const std::string& directory, offload::HeldDirectories& held,
                               const offload::LockWait& wait) {
  std::error_code error;
  make_directories(directory, error);
  std::error_code ignored;
  if (error && !fs::is_directory(directory, ignored)) {
    throw IoError(error.value(), "create directory", directory, 0, 0,
                  error == std::errc::permission_denied
                      ? "this user must be allowed to enter the directories above it, and to "
                        "write in the one where it is made"
                      : "checkpoints need a directory, or a name where one can be made");
  }
  if (held.holds(directory)) return;
  held.hold(directory, wait);
  offload::remove_dead_checkpoints(directory);
}

}  // namespace sluice::train
