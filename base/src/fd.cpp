#include "sluice/base/fd.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/file/unshared.hpp"
#include "sluice/base/log.hpp"

namespace sluice {

namespace {

// The descriptors of open_unshared() in this process.
class UnsharedFds {
 public:
  static UnsharedFds& instance() {
    static auto* const fds = new UnsharedFds;  // for files that static objects hold to the end
    return *fds;
  }

  // As open(2) with O_CLOEXEC. No fork comes between: who shares the open file shares its lock.
  int open(const std::string& path, int flags, mode_t mode) {
    const std::scoped_lock no_fork(mutex_);
    if (!have_nothing()) return -1;
    int fd = -1;
    do {
      fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
    } while (fd < 0 && errno == EINTR);
    if (fd >= 0) fds_.insert(fd);
    return fd;
  }
  // As close(2). The file's lock is gone, whoever else may have the file; not so in a child.
  int close(int fd) {
    const std::scoped_lock no_fork(mutex_);
    if (fds_.erase(fd) > 0) ::flock(fd, LOCK_UN);
    return ::close(fd);
  }

 private:
  UnsharedFds() {
    ::pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                     [] { instance().be_a_child(); });
  }
  // A process that has closed all that it inherited may have another file at the number.
  bool have_nothing() {
    const int flags = nothing_ < 0 ? 0 : ::fcntl(nothing_, F_GETFL);
    if (flags < 0 || (flags & O_PATH) == 0) nothing_ = ::open("/", O_PATH | O_CLOEXEC);
    return nothing_ >= 0;
  }
  // The numbers stay in use: the child's own owners close them.
  void be_a_child() {
    if (!fds_.empty() && have_nothing())
      for (const int fd : fds_) ::dup3(nothing_, fd, O_CLOEXEC);
    fds_.clear();
    mutex_.unlock();
  }

  std::mutex mutex_;  // held while a file of these is opened or closed, and by forks
  int nothing_ = -1;  // opened before any of them: a child may have no descriptor left
  std::set<int> fds_;
};

}  // namespace

UniqueFd open_unshared(const std::string& path, int flags, mode_t mode) {
  UniqueFd fd(UnsharedFds::instance().open(path, flags, mode));
  fd.is_unshared_ = true;
  return fd;
}

bool try_flock(int fd, int operation, const std::string& path) {
  while (::flock(fd, operation | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) throw IoError(errno, "flock", path);
  }
  return true;
}

namespace {

// The path of an open file; empty where /proc does not tell. Takes no memory and leaves errno.
std::string_view path_of(int fd, std::span<char> buffer) {
  const int error_number = errno;
  std::array<char, 32> link{};
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", fd);
  const ssize_t size = ::readlink(link.data(), buffer.data(), buffer.size());
  errno = error_number;
  return {buffer.data(), size < 0 ? 0 : static_cast<std::size_t>(size)};
}

}  // namespace

void UniqueFd::reset() noexcept {
  const int fd = std::exchange(fd_, -1);
  if (fd < 0) return;
  std::array<char, PATH_MAX> buffer;
  const std::string_view path = path_of(fd, buffer);
  // Linux releases the descriptor even when close() reports EINTR or EIO: never repeat it.
  if ((is_unshared_ ? UnsharedFds::instance().close(fd) : ::close(fd)) != 0 && errno != EINTR) {
    const char* const problem = std::strerror(errno);
    log(LogLevel::error, std::string(path) + (path.empty() ? "" : ": ") + "close: " + problem +
                             "; what was written last to that file may be lost");
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

namespace {

std::string too_long(std::uint64_t size_bytes) {
  return "has " + format_bytes(size_bytes) + ", far more than such a file takes";
}

}  // namespace

std::string read_regular_file(int fd, const std::string& path, std::uint64_t most_bytes) {
  struct stat info {};
  SLUICE_SYSCALL(::fstat(fd, &info), path);
  if (!S_ISREG(info.st_mode)) throw StorageError(path, "is not a regular file");
  if (static_cast<std::uint64_t>(info.st_size) > most_bytes) {
    throw StorageError(path, too_long(static_cast<std::uint64_t>(info.st_size)));
  }
  // The size is a guess: files of /proc and /sys have 0, and any file may grow or shrink meanwhile.
  constexpr std::size_t kAtLeast = 4096;
  std::string text(static_cast<std::size_t>(info.st_size) + 1, '\0');
  std::size_t done = 0;
  for (;;) {
    if (done == text.size()) text.resize(std::max(2 * done, kAtLeast));
    const ssize_t got = SLUICE_SYSCALL(::read(fd, text.data() + done, text.size() - done), path);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
    if (done > most_bytes) throw StorageError(path, too_long(done));
  }
  text.resize(done);
  return text;
}

}  // namespace sluice
