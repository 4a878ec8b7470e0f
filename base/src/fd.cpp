#include "sluice/base/fd.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"

namespace sluice {

void UniqueFd::reset() noexcept {
  const int fd = std::exchange(fd_, -1);
  // Linux releases the descriptor even when close() reports EINTR or EIO: never repeat it.
  if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) {
    log(LogLevel::error, std::string("close: ") + std::strerror(errno));
  }
}

bool is_file_at(int fd, const std::string& path) {
  struct stat held {};
  struct stat named {};
  SLUICE_SYSCALL(::fstat(fd, &held), path);
  if (::stat(path.c_str(), &named) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return false;
    throw IoError(errno, "stat", path);
  }
  return held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

std::string free_numbered_path(const std::string& path) {
  const std::filesystem::path whole(path);
  for (int number = 1;; ++number) {
    std::filesystem::path name = whole;
    name.replace_filename(whole.stem().string() + "." + std::to_string(number) +
                          whole.extension().string());
    if (!std::filesystem::exists(name)) return name.string();
  }
}

}  // namespace sluice
