#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/file/unshared.hpp"
#include "sluice/nvme/file.hpp"

namespace sluice::nvme {

std::optional<SwapFile> open_locked_file(const std::string& path, DirectIo direct,
                                         std::size_t drive) {
  for (;;) {
    SwapFile file(path, OpenMode::create, direct, drive);
    UniqueFd lock = open_unshared(path, O_RDWR | O_NONBLOCK);
    if (!lock && errno == ENOENT) continue;  // its owner has removed it meanwhile
    if (!lock) throw IoError(errno, "open", path);
    if (!try_flock(lock.get(), LOCK_EX, path)) return std::nullopt;
    // Owners remove their file while they have it locked: the name stays from here on.
    if (!is_file_at(lock.get(), path) || !is_file_at(file.fd(), path)) continue;
    file.lock_ = std::move(lock);
    return file;
  }
}

}  // namespace sluice::nvme
