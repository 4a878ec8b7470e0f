#include "file/file_lock.hpp"

#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/nvme/file.hpp"

namespace sluice::nvme {

bool lock_soon(int fd, int operation, const std::string& path) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kPollInterval{10};
  const Clock::time_point end = Clock::now() + std::chrono::seconds(1);
  while (::flock(fd, operation | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) throw IoError(errno, "flock", path);
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(kPollInterval);
  }
  return true;
}

std::optional<SwapFile> open_locked_file(const std::string& path, DirectIo direct,
                                         std::size_t drive) {
  for (;;) {
    SwapFile file(path, OpenMode::create, direct, drive);
    if (!lock_soon(file.fd(), LOCK_EX, path)) return std::nullopt;
    struct stat status {};
    SLUICE_SYSCALL(::fstat(file.fd(), &status), path);
    // The process before may have removed it while this one waited.
    if (status.st_nlink > 0) return file;
  }
}

}  // namespace sluice::nvme
