#pragma once
// flock(2) on files that io_uring may still hold for a process that has ended.

#include <string>

namespace sluice::nvme {

// Takes flock(2), LOCK_SH or LOCK_EX, on the open file `path`. Tries for a second, since the kernel
// tears down the rings of a process that has ended in its own time, and a ring holds its files.
// False where another process holds the file for longer. Throws IoError.
bool lock_soon(int fd, int operation, const std::string& path);

}  // namespace sluice::nvme
