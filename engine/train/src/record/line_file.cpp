#include "record/line_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"

namespace sluice::train {

namespace {

// Bytes of the whole lines up to the number `last_kept`; 0 when no line with a number is among
// them. A last line without a newline at its end is torn. Throws IoError.
std::uint64_t kept_length(int fd, const std::string& path, std::int64_t last_kept,
                          const LineFile::NumberOf& number_of) {
  std::uint64_t kept = 0;
  std::uint64_t read = 0;
  bool has_numbered = false;
  std::string line;
  std::array<char, 65536> buffer;
  for (bool ended = false; !ended;) {
    const auto got = static_cast<std::size_t>(
        SLUICE_SYSCALL(::pread(fd, buffer.data(), buffer.size(), static_cast<off_t>(read)), path));
    read += got;
    ended = got == 0;
    std::string_view rest(buffer.data(), got);
    for (auto end = rest.find('\n'); !ended && end != std::string_view::npos;
         end = rest.find('\n')) {
      line += rest.substr(0, end);
      rest.remove_prefix(end + 1);
      const std::optional<std::int64_t> number = number_of(line);
      ended = !number || *number > last_kept;
      if (ended) break;
      kept += line.size() + 1;
      has_numbered = has_numbered || *number > 0;
      line.clear();
    }
    line += rest;
  }
  return has_numbered ? kept : 0;
}

UniqueFd open_and_lock(const std::string& path, const std::string& setting) {
  // Read as well: a FIFO of this name, opened for writing only, would be waited for.
  UniqueFd fd(
      SLUICE_SYSCALL(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644), path));
  struct stat info {};
  SLUICE_SYSCALL(::fstat(fd.get(), &info), path);
  if (!S_ISREG(info.st_mode))
    throw StorageError(path, "is not a regular file: remove it, or choose another " + setting);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
  if (errno != EWOULDBLOCK) throw IoError(errno, "flock", path);
  throw StorageError(path, "is being written by another run: give each its own " + setting);
}

AppendFile open_kept(const std::string& path, std::int64_t last_kept,
                     const LineFile::NumberOf& number_of, const std::string& setting,
                     const std::string& header) {
  UniqueFd fd = open_and_lock(path, setting);
  const std::uint64_t kept = kept_length(fd.get(), path, last_kept, number_of);
  struct stat info {};
  SLUICE_SYSCALL(::fstat(fd.get(), &info), path);
  if (kept == 0 && info.st_size > 0) {
    // The file belongs to an earlier run; this run starts a new one.
    const std::string aside = free_numbered_path(path);
    SLUICE_SYSCALL(::rename(path.c_str(), aside.c_str()), path);
    log(LogLevel::info, path + " is of an earlier run and is now " + aside);
    fd = open_and_lock(path, setting);
  }
  SLUICE_SYSCALL(::ftruncate(fd.get(), static_cast<off_t>(kept)), path);
  return AppendFile(
      std::move(fd), path, kept, [path, setting] { return open_and_lock(path, setting); }, header);
}

}  // namespace

void make_directory(const std::string& directory) {
  std::error_code error;
  if (std::filesystem::exists(directory, error) && !std::filesystem::is_directory(directory, error))
    throw InvalidArgument(directory +
                          " is a file, and a directory is expected: choose another name");
  std::filesystem::create_directories(directory, error);
  if (error) throw IoError(error.value(), "create directory", directory);
}

void check_can_write_lines(const std::string& directory) {
  make_directory(directory);
  SLUICE_SYSCALL(::access(directory.c_str(), W_OK | X_OK), directory);
}

LineFile::LineFile(const std::string& path, std::int64_t last_kept, const NumberOf& number_of,
                   const std::string& setting, const std::string& header)
    : file_(open_kept(path, last_kept, number_of, setting, header)) {}

}  // namespace sluice::train
