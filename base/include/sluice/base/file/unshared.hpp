#pragma once
// Files that are to be locked by flock(2). Such a lock belongs to the open file, which forked
// children have as well: each would hold it as long as it lives, longer than a process that was
// killed. Thread-safe: free functions without state.

#include <sys/types.h>

#include <string>

#include "sluice/base/fd.hpp"

namespace sluice {

// As open(2) with O_CLOEXEC: empty, with errno set, when it fails. The file is this process's
// alone: its number in a forked child is one of nothing that can be read, written or locked.
// Closing the file in this process unlocks it.
UniqueFd open_unshared(const std::string& path, int flags, mode_t mode = 0);
// Takes flock(2), LOCK_SH or LOCK_EX, on the open file `path`. False when another process holds it.
// Throws IoError.
bool try_flock(int fd, int operation, const std::string& path);

}  // namespace sluice
