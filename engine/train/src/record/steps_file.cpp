#include "record/steps_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"

namespace sluice::train {

namespace {

// Bytes of the whole lines whose step is at most `last_step`.
std::uint64_t length_up_to(const std::string& path, std::int64_t last_step) {
  std::ifstream file(path, std::ios::binary);
  std::uint64_t kept = 0;
  std::string line;
  while (std::getline(file, line)) {
    long long step = 0;
    const bool whole = !file.eof() && std::sscanf(line.c_str(), "{\"step\":%lld", &step) == 1;
    if (!whole || step > last_step) break;
    kept += line.size() + 1;
  }
  return kept;
}

void write_all(int fd, const std::string& text, const std::string& path) {
  // One write() in practice; a file system that takes less gets the rest.
  std::size_t done = 0;
  while (done < text.size()) {
    done += static_cast<std::size_t>(
        SLUICE_SYSCALL(::write(fd, text.data() + done, text.size() - done), path));
  }
}

}  // namespace

void make_directory(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw IoError(error.value(), "create directory", directory);
}

StepsFile::StepsFile(const std::string& directory, std::int64_t committed_step) {
  if (directory.empty()) return;
  make_directory(directory);
  path_ = directory + "/steps.jsonl";
  open_and_lock();
  const std::uint64_t kept = length_up_to(path_, committed_step);
  if (kept == 0 && std::filesystem::file_size(path_) > 0) {
    // The file belongs to an earlier run; this run starts a new one.
    const std::string aside = free_numbered_path(path_);
    SLUICE_SYSCALL(::rename(path_.c_str(), aside.c_str()), path_);
    log(LogLevel::info, path_ + " is of an earlier run and is now " + aside);
    open_and_lock();
  }
  SLUICE_SYSCALL(::ftruncate(fd_.get(), static_cast<off_t>(kept)), path_);
}

void StepsFile::open_and_lock() {
  // Read as well: a FIFO of this name, opened for writing only, would be waited for.
  fd_ = UniqueFd(
      SLUICE_SYSCALL(::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644), path_));
  struct stat info {};
  SLUICE_SYSCALL(::fstat(fd_.get(), &info), path_);
  if (!S_ISREG(info.st_mode)) {
    throw StorageError(path_, "is not a regular file: remove it, or choose another --report");
  }
  if (::flock(fd_.get(), LOCK_EX | LOCK_NB) == 0) return;
  if (errno != EWOULDBLOCK) throw IoError(errno, "flock", path_);
  throw StorageError(path_, "is being written by another run: give each its own --report");
}

void StepsFile::append(const StepRecord& record) {
  if (fd_) write_all(fd_.get(), to_json_line(record) + "\n", path_);
}

void write_file(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".tmp";
  {
    const UniqueFd fd(SLUICE_SYSCALL(
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644), temporary));
    write_all(fd.get(), text, temporary);
  }
  SLUICE_SYSCALL(::rename(temporary.c_str(), path.c_str()), path);
}

}  // namespace sluice::train
