#pragma once
// DirectoryLock: holds a swap directory for this process, by a flock on DIR/lock. SwapStore locks
// its directories itself; this lock is for a directory with scratch files only, and for
// maintenance. The system releases the lock when the process ends, however it ends; the file stays.
//
// Thread-compatible: callers synchronise.

#include <string>

#include "sluice/base/fd.hpp"

namespace sluice::offload {

class DirectoryLock {
 public:
  // exclusive: one run; the file holds its process id. shared: any number of readers and no run;
  // needs no right to write.
  enum class Mode { exclusive, shared };
  // Throws StorageError naming the holder, and when DIR/lock is a file of something else; IoError
  // when the directory is absent, not a directory, or cannot be written.
  DirectoryLock(const std::string& directory, Mode mode);

 private:
  UniqueFd fd_;
};

}  // namespace sluice::offload
