#pragma once
// Errors of writes that the system has taken. Thread-safe.

#include <string>

namespace sluice {

// Throws IoError for a write to the open file `fd` that its drive did not take, as far as the
// system tells before the data are synced: NFS, CIFS and FUSE tell when a descriptor is closed, and
// a copy of `fd` is closed here. Call it before a file takes the place of another. Records of
// fcntl() on the file are unlocked. `advice_if_full` ends the message of ENOSPC. Blocks.
void check_written(int fd, const std::string& path, const std::string& advice_if_full = "");

}  // namespace sluice
