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
#include <exception>
#include <filesystem>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/file/unshared.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/written.hpp"

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

namespace {

// How many bytes a call of write() or pwrite() has written, which returned `result`; 0 after an
// interruption.
std::size_t written_bytes(ssize_t result, const char* call, const std::string& path,
                          std::uint64_t offset_bytes = 0, std::uint64_t size_bytes = 0,
                          const std::string& advice_if_full = "") {
  const int error_number = errno;
  if (result > 0) return static_cast<std::size_t>(result);
  if (result == 0)  // to repeat the call could take for ever
    throw IoError(EIO, call, path, offset_bytes, size_bytes, "the file system wrote 0 bytes");
  if (error_number == EINTR) return 0;
  throw IoError(error_number, call, path, offset_bytes, size_bytes,
                error_number == ENOSPC ? advice_if_full : "");
}

}  // namespace

void write_all(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty())
    bytes.remove_prefix(written_bytes(::write(fd, bytes.data(), bytes.size()), "write", path));
}

void write_all_at(int fd, std::span<const std::byte> bytes, std::uint64_t offset_bytes,
                  const std::string& path, const std::string& advice_if_full) {
  while (!bytes.empty()) {
    const ssize_t result =
        ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset_bytes));
    const std::size_t done =
        written_bytes(result, "pwrite", path, offset_bytes, bytes.size(), advice_if_full);
    bytes = bytes.subspan(done);
    offset_bytes += done;
  }
}

void check_written(int fd, const std::string& path, const std::string& advice_if_full) {
  for (;;) {
    const int copy = SLUICE_SYSCALL(::fcntl(fd, F_DUPFD_CLOEXEC, 0), path);
    if (::close(copy) == 0) return;
    const int error_number = errno;
    if (error_number == EINTR) continue;  // the copy is closed, and the drive has not answered
    throw IoError(error_number, "close", path, 0, 0, error_number == ENOSPC ? advice_if_full : "");
  }
}

void replace_file(const std::string& path, std::string_view text, const Replacement& how) {
  const std::string draft = how.draft.empty() ? path + ".tmp" : how.draft;
  const UniqueFd fd(SLUICE_SYSCALL(
      ::open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, how.mode), draft));
  try {
    write_all_at(fd.get(), std::as_bytes(std::span(text)), 0, draft, how.advice_if_full);
    if (how.sync == FileSync::fsync) SLUICE_SYSCALL(::fsync(fd.get()), draft);
    check_written(fd.get(), draft, how.advice_if_full);
    SLUICE_SYSCALL(::rename(draft.c_str(), path.c_str()), path);
  } catch (...) {
    remove_file_quietly(draft);
    throw;
  }
}

namespace {

// False: `path` is a directory, on a file system that has no fsync of directories.
bool try_sync(const std::string& path, struct stat& info) {
  const UniqueFd fd(SLUICE_SYSCALL(::open(path.c_str(), O_RDONLY | O_CLOEXEC), path));
  SLUICE_SYSCALL(::fstat(fd.get(), &info), path);
  try {
    SLUICE_SYSCALL(::fsync(fd.get()), path);
  } catch (const IoError& error) {
    const int error_number = error.code().value();
    if (!S_ISDIR(info.st_mode) || (error_number != EINVAL && error_number != ENOTSUP)) throw;
    return false;
  }
  return true;
}

void say_once_that_names_may_be_lost(const std::string& directory, dev_t file_system) {
  static std::mutex mutex;
  static std::set<dev_t> said;
  {
    const std::scoped_lock lock(mutex);
    if (!said.insert(file_system).second) return;
  }
  log(LogLevel::warn,
      directory +
          ": its file system cannot sync a directory (fsync). Files are synced, but a loss of "
          "power may take back what was made, renamed or removed there, a checkpoint too");
}

}  // namespace

void sync_path(const std::string& path) {
  struct stat info {};
  if (!try_sync(path, info)) say_once_that_names_may_be_lost(path, info.st_dev);
}

bool can_sync_directory(const std::string& path) {
  struct stat info {};
  return try_sync(path, info);
}

void remove_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) throw IoError(errno, "unlink", path);
}

void remove_file_quietly(const std::string& path) noexcept {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    const int error_number = errno;
    try {
      log(LogLevel::warn, path + ": could not be removed: " + std::strerror(error_number));
    } catch (const std::exception&) {
      // No memory for the message; the file stays.
    }
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

void check_regular_file(const std::string& path) {
  struct stat info {};
  SLUICE_SYSCALL(::stat(path.c_str(), &info), path);
  if (!S_ISREG(info.st_mode)) throw StorageError(path, "is not a regular file");
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

std::string read_regular_file(const std::string& path, std::uint64_t most_bytes) {
  // O_NONBLOCK: opening a FIFO would otherwise wait for a writer.
  const UniqueFd fd(SLUICE_SYSCALL(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK), path));
  return read_regular_file(fd.get(), path, most_bytes);
}

std::string file_behind_links(const std::string& path) {
  constexpr int kMostLinks = 40;  // as many as the kernel follows
  std::filesystem::path file(path);
  std::error_code error;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(file, error); ++i) {
    const std::filesystem::path target = std::filesystem::read_symlink(file, error);
    if (error) break;
    file = file.parent_path() / target;  // an absolute target replaces all of it
  }
  return file.string();
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
