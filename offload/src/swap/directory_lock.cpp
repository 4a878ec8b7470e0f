#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <thread>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/file/unshared.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/written.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "sluice/offload/swap_state.hpp"
#include "swap/store_files.hpp"

namespace sluice::offload {
namespace {

// To create one that is missing would be the wrong advice.
void check_rank_folder(const std::string& directory) {
  std::error_code error;
  if (rank_folder_of(directory) && !std::filesystem::exists(directory, error))
    throw StorageError(directory,
                       "is not here, and has the states of a rank: make the folders of all ranks "
                       "reachable, or go on from a checkpoint");
}

void check_directory(const std::string& directory, DirectoryLock::Mode mode) {
  if (mode == DirectoryLock::Mode::shared) check_rank_folder(directory);
  struct stat status {};
  if (::stat(directory.c_str(), &status) != 0) {
    const int error_number = errno;
    throw IoError(error_number, "opening the directory", directory, 0, 0,
                  error_number == ENOENT ? "check the path, or create it first" : "");
  }
  if (!S_ISDIR(status.st_mode)) {
    throw IoError(ENOTDIR, "opening the directory", directory, 0, 0, "choose a directory");
  }
  if (mode == DirectoryLock::Mode::exclusive &&
      ::faccessat(AT_FDCWD, directory.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    throw IoError(errno, "opening the directory for writing", directory, 0, 0,
                  "give this user the right to write there, or choose another directory");
  }
}

[[noreturn]] void throw_not_a_lock(const std::string& path) {
  throw StorageError(path,
                     "is not the lock of a run, and is left as it is: choose another directory");
}

// Empty where a reader finds no lock file: whoever runs in a directory has made one, so nobody
// does.
UniqueFd open_lock_file(const std::string& path, DirectoryLock::Mode mode) {
  if (mode == DirectoryLock::Mode::exclusive) {
    UniqueFd made = open_unshared(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
    if (!made && errno == ELOOP) throw_not_a_lock(path);
    if (!made) throw IoError(errno, "open", path);
    return made;
  }
  UniqueFd fd = open_unshared(path, O_RDONLY | O_NONBLOCK);  // a FIFO would wait
  if (!fd && errno != ENOENT) throw IoError(errno, "open", path);
  return fd;
}

// A file of this name with anything but a process id is something else's. After a loss of power its
// bytes may be zeros.
void check_lock_file(int fd, const std::string& path) {
  struct stat status {};
  SLUICE_SYSCALL(::fstat(fd, &status), path);
  if (!S_ISREG(status.st_mode) || status.st_size > static_cast<off_t>(kLockBytes))
    throw_not_a_lock(path);
  std::array<char, kLockBytes> text{};
  const ssize_t got = SLUICE_SYSCALL(::pread(fd, text.data(), text.size(), 0), path);
  const std::string_view found(text.data(), static_cast<std::size_t>(got));
  constexpr std::string_view kOfALock("0123456789 \n\0", 13);
  if (found.find_first_not_of(kOfALock) != std::string_view::npos) throw_not_a_lock(path);
}

// 0 when the file holds none.
pid_t recorded_pid(int fd) {
  std::array<char, kLockBytes> text{};
  const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
  pid_t pid = 0;
  if (got > 0) std::from_chars(text.data(), text.data() + got, pid);
  return pid;
}

std::string holder_of(int fd) {
  const pid_t pid = recorded_pid(fd);
  // Only exclusive holders leave their id. One that is gone is not the holder: then a reader is, or
  // a run in another process id namespace.
  const bool alive = pid > 0 && (::kill(pid, 0) == 0 || errno == EPERM);
  const std::string number = "run (process " + std::to_string(pid) + ")";
  if (pid == ::getpid())
    return number + ", which is this process itself, or one of that number in another container";
  return alive ? number
               : "process, one that verifies or exports it, or one of another machine or container";
}

[[noreturn]] void throw_locked(int fd, const std::string& directory) {
  throw StorageError(directory, "is in use by another " + holder_of(fd) +
                                    ": wait until it has ended, or choose another directory");
}

// False when another process holds the lock.
bool try_lock(int fd, DirectoryLock::Mode mode, const std::string& directory) {
  return try_flock(fd, mode == DirectoryLock::Mode::exclusive ? LOCK_EX : LOCK_SH,
                   lock_path(directory));
}

// The end of a wait that begins now, and its line in the log.
class Patience {
 public:
  Patience(const LockWait& wait, const std::string& directory)
      : wait_(wait), directory_(directory), end_(std::chrono::steady_clock::now() + wait.most) {}
  // Sleeps a moment. Throws StorageError when the time is over or a signal has come.
  void sleep(int fd) {
    if (std::chrono::steady_clock::now() >= end_) throw_locked(fd, directory_);
    if (wait_.stop != nullptr && *wait_.stop != 0) throw Interrupted(*wait_.stop);
    if (!said_) {
      log(LogLevel::info,
          directory_ + " is in use by another " + holder_of(fd) + ": waiting until it has ended");
      said_ = true;
    }
    std::this_thread::sleep_for(kPollInterval);
  }

 private:
  static constexpr std::chrono::milliseconds kPollInterval{20};
  const LockWait& wait_;
  const std::string& directory_;
  const std::chrono::steady_clock::time_point end_;
  bool said_ = false;
};

struct stat status_of(const std::string& directory) {
  struct stat status {};
  check_rank_folder(directory);
  SLUICE_SYSCALL(::stat(directory.c_str(), &status), directory);
  return status;
}

void record_pid(int fd, const std::string& path) {
  std::array<char, kLockBytes + 1> text{};
  std::snprintf(text.data(), text.size(), "%-11d\n", static_cast<int>(::getpid()));
  SLUICE_SYSCALL(::pwrite(fd, text.data(), kLockBytes, 0), path);
}

}  // namespace

DirectoryLock::DirectoryLock(const std::string& directory, Mode mode, const LockWait& wait)
    : DirectoryLock() {  // whose object is whole, so that an error here lets go
  check_directory(directory, mode);
  path_ = lock_path(directory);
  Patience patience(wait, directory);
  bool locked = false;
  while (!locked) {
    fd_ = open_lock_file(path_, mode);
    if (!fd_) return;
    check_lock_file(fd_.get(), path_);
    if (!try_lock(fd_.get(), mode, directory)) {
      patience.sleep(fd_.get());
      continue;
    }
    // Whoever clears a directory removes the lock while holding it; one who had opened it before
    // would then hold a lock that nobody else sees.
    locked = is_file_at(fd_.get(), path_);
  }
  if (mode == Mode::exclusive) record_pid(fd_.get(), path_);
}

DirectoryLock::~DirectoryLock() = default;

void DirectoryLock::check_still_there() const {
  if (!fd_ || is_file_at(fd_.get(), path_)) return;
  throw StorageError(
      path_,
      "was removed or replaced while this run held the directory by it, so another run may have "
      "changed what is there: this one saves nothing more there. Put the directory back if it was "
      "moved; --resume goes on from what is committed there, and sluice nvme verify tells whether "
      "that is whole. Leave the lock alone: without a run it refuses nobody");
}

void DirectoryLock::check_has_name() const {
  struct stat status {};
  if (!fd_) return;
  SLUICE_SYSCALL(::fstat(fd_.get(), &status), path_);
  if (status.st_nlink == 0) check_still_there();  // some FUSE programs count no names
}

void HeldDirectories::hold(const std::string& directory, const LockWait& wait) {
  if (holds(directory)) return;
  const bool made = ::access(lock_path(directory).c_str(), F_OK) != 0;
  DirectoryLock lock(directory, DirectoryLock::Mode::exclusive, wait);
  const struct stat status = status_of(directory);
  held_.push_back({directory, status.st_dev, status.st_ino, made, std::move(lock)});
}

void HeldDirectories::count_as_held(const std::string& directory) {
  if (holds(directory)) return;
  const struct stat status = status_of(directory);
  held_.push_back({directory, status.st_dev, status.st_ino, false, std::nullopt});
}

HeldDirectories::~HeldDirectories() {
  for (const Held& held : held_) {
    if (held.made && holds_nothing_but_a_lock(held.directory))
      remove_file_quietly(lock_path(held.directory));
  }
}

const HeldDirectories::Held* HeldDirectories::find(const std::string& directory) const {
  struct stat status {};
  if (::stat(directory.c_str(), &status) != 0) return nullptr;
  const auto found = std::find_if(held_.begin(), held_.end(), [&](const Held& held) {
    return held.device == status.st_dev && held.inode == status.st_ino;
  });
  return found == held_.end() ? nullptr : &*found;
}

bool HeldDirectories::holds(const std::string& directory) const {
  return find(directory) != nullptr;
}

std::vector<const DirectoryLock*> HeldDirectories::locks_of(const std::string& directory) const {
  std::vector<const DirectoryLock*> locks;
  for (const Held* held : {find(directory), find(run_of(directory))})
    if (held != nullptr && held->lock) locks.push_back(&*held->lock);
  return locks;
}

}  // namespace sluice::offload
