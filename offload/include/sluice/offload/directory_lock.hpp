#pragma once
// DirectoryLock: holds a swap directory for this process, by a flock on DIR/lock. SwapStore locks
// its directories itself, except those of HeldDirectories; this lock is also for a directory with
// scratch files only, and for maintenance. The system releases the lock when the process ends,
// however it ends, and whichever children it has forked; the file stays.
//
// Thread-compatible: callers synchronise.

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "sluice/base/fd.hpp"

namespace sluice::offload {

// How long a lock that another process holds is waited for. `stop` ends the wait when it becomes
// nonzero; may be null.
struct LockWait {
  std::chrono::milliseconds most{0};
  const std::atomic<int>* stop = nullptr;
};

class DirectoryLock {
 public:
  // exclusive: one run; the file holds its process id. shared: any number of readers and no run;
  // needs no right to write.
  enum class Mode { exclusive, shared };
  // Waits as long as `wait` says, with one line in the log. Throws StorageError naming the holder,
  // and when DIR/lock is a file of something else; Interrupted when `wait.stop` ends the wait;
  // IoError when the directory is absent, not a directory, or cannot be written.
  DirectoryLock(const std::string& directory, Mode mode, const LockWait& wait = {});
  DirectoryLock(DirectoryLock&&) = default;
  DirectoryLock& operator=(DirectoryLock&&) = delete;
  // Lets go of the directory. In a forked child it does nothing: the lock is its parent's.
  ~DirectoryLock();

  // Throws StorageError when DIR/lock was removed or replaced since: another run may have locked
  // the directory meanwhile. IoError when that cannot be found out.
  void check_still_there() const;
  // As check_still_there(), by one call that looks up no path: does not see that the lock, or the
  // directory, was renamed.
  void check_has_name() const;

 private:
  DirectoryLock() = default;
  std::string path_;
  UniqueFd fd_;  // empty for a reader that found no lock
};

// HeldDirectories: directories that a run has locked for itself before it reads what they hold, and
// keeps locked until it ends. Who is given them does not lock these again. A lock file that it made
// goes at the end when the directory holds nothing else: a refused run leaves nothing behind.
class HeldDirectories {
 public:
  HeldDirectories() = default;
  ~HeldDirectories();
  HeldDirectories(HeldDirectories&&) = default;
  HeldDirectories& operator=(HeldDirectories&&) = delete;

  // Locks `directory` exclusively unless it is held already. Throws as DirectoryLock.
  void hold(const std::string& directory, const LockWait& wait = {});
  // Takes `directory` for held without a lock: another rank of the run holds it, or a directory
  // that it lies in. Throws IoError when it is absent.
  void count_as_held(const std::string& directory);
  // Whether `directory` is held, by this or another name.
  bool holds(const std::string& directory) const;
  // The lock of `directory`, and for a rank's folder that of its run, without those that other
  // ranks have. They stay where they are as long as this object, or one that it was moved to,
  // lives.
  std::vector<const DirectoryLock*> locks_of(const std::string& directory) const;

 private:
  struct Held {
    std::string directory;
    dev_t device = 0;
    ino_t inode = 0;
    bool made = false;  // the lock file
    std::optional<DirectoryLock> lock;
  };
  const Held* find(const std::string& directory) const;
  std::deque<Held> held_;
};

}  // namespace sluice::offload
