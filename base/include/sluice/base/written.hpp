#pragma once
// Writes that are whole, or an error. Thread-safe: free functions without state.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace sluice {

// Writes all bytes at the file's position, or at its end with O_APPEND. A file system that takes
// less than one write() gets the rest; one that takes 0 bytes is an error. Throws IoError; then a
// part of the bytes may be in the file. Blocks.
void write_all(int fd, std::string_view bytes, const std::string& path);
// Writes all bytes at an offset, otherwise as write_all(). `advice_if_full` ends the message of
// ENOSPC.
void write_all_at(int fd, std::span<const std::byte> bytes, std::uint64_t offset_bytes,
                  const std::string& path, const std::string& advice_if_full = "");

// Throws IoError for a write to the open file `fd` that its drive did not take, as far as the
// system tells before the data are synced: NFS, CIFS and FUSE tell when a descriptor is closed, and
// a copy of `fd` is closed here. Call it before a file takes the place of another. Records of
// fcntl() on the file are unlocked. `advice_if_full` ends the message of ENOSPC. Blocks.
void check_written(int fd, const std::string& path, const std::string& advice_if_full = "");

enum class FileSync { none, fsync };

struct Replacement {
  std::string draft{};             // where the text is written first; empty: PATH.tmp
  mode_t mode = 0666;              // less the umask
  FileSync sync = FileSync::none;  // of the draft, before the rename
  std::string advice_if_full{};    // ends the message of ENOSPC
};

// Makes the text the whole file `path`: writes a draft beside it and renames the draft. A symbolic
// link `path` is replaced, its target is not. Throws IoError; then `path` is as it was and the
// draft is gone. The rename survives loss of power only after the directory is synced. Blocks.
void replace_file(const std::string& path, std::string_view text, const Replacement& how = {});

// fsync of a file, or of a directory: the creations, renames and removals in it survive loss of
// power. Where can_sync_directory() is false, a directory is left as it is, and the log says so
// once for each file system. Throws IoError. Blocks.
void sync_path(const std::string& path);
// False where the file system has no fsync of directories. Syncs this one. Throws IoError for
// another failure. Blocks.
bool can_sync_directory(const std::string& path);

// An absent file is no error. Throws IoError.
void remove_file(const std::string& path);
// For clean-up on the way out of a failure: logs, never throws. An absent file is no error.
void remove_file_quietly(const std::string& path) noexcept;

}  // namespace sluice
