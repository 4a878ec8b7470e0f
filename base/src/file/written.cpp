#include "sluice/base/written.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <set>

#include "sluice/base/error.hpp"
#include "sluice/base/fd.hpp"
#include "sluice/base/log.hpp"

namespace sluice {

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

}  // namespace sluice
