#pragma once
// Files that are to be locked by flock(2). Such a lock belongs to the open file, which forked
// children have as well: each would hold it as long as it lives, longer than a process that was
// killed. Thread-safe: a free function.

#include <sys/types.h>

#include <string>

#include "sluice/base/fd.hpp"

namespace sluice {

// As open(2) with O_CLOEXEC: empty, with errno set, when it fails. The file is this process's
// alone: its number in a forked child is one of nothing that can be read, written or locked.
// Closing the file in this process unlocks it.
UniqueFd open_unshared(const std::string& path, int flags, mode_t mode = 0);

}  // namespace sluice
