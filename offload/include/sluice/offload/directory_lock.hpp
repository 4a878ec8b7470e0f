#pragma once
// DirectoryLock: holds a directory for this process, by a flock on DIR/lock. The system releases
// the lock when the process ends, however it ends; the file stays.

#include <string>

#include "sluice/base/fd.hpp"

namespace sluice::offload {

// Thread-compatible: callers synchronise.
class DirectoryLock {
 public:
  // `exclusive`: one run; the file names its process id. `shared`: any number of readers and no
  // run; needs no right to write.
  enum class Mode { exclusive, shared };
  // Throws StorageError naming the process that holds the lock, and when DIR/lock is a file of
  // another program. Throws IoError when the directory is absent, not a directory, or cannot be
  // written.
  DirectoryLock(const std::string& directory, Mode mode);

 private:
  UniqueFd fd_;
};

}  // namespace sluice::offload
