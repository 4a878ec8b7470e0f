#pragma once
// SwapFile: one open file for direct I/O, with the alignment that this file asks for.
// Not a cache and not a layout: what lies where in the file is the caller's business.
//
// Thread-compatible: callers synchronise; a const SwapFile may be used by any number of threads.

#include <cstddef>
#include <cstdint>
#include <string>

#include "sluice/base/fd.hpp"

namespace sluice::nvme {

// How the page cache is avoided. `automatic`: O_DIRECT where the file system takes it, else
// buffered, and why_buffered() says so in one line.
enum class DirectIo { automatic, on, off };
enum class OpenMode { read_only, read_write, create };

class SwapFile {
 public:
  // Opens or creates (0600, kept when it exists) `path`. Throws IoError with the path; with
  // DirectIo::on also when the file system refuses O_DIRECT (a file created by that attempt stays,
  // empty), and when it is no regular file. `drive` says which of an IoEngine's queues moves it.
  SwapFile(std::string path, OpenMode mode, DirectIo direct, std::size_t drive = 0);

  const std::string& path() const { return path_; }
  std::size_t drive() const { return drive_; }
  int fd() const { return fd_.get(); }
  bool direct() const { return direct_; }
  // Empty, or why O_DIRECT could not be had.
  const std::string& why_buffered() const { return why_buffered_; }
  // Offsets and sizes / addresses of a transfer must be multiples of these for it to go without a
  // bounce buffer (statx DIOALIGN; 4096 where the kernel does not say; 1 when buffered).
  std::uint32_t offset_alignment() const { return offset_alignment_; }
  std::uint32_t memory_alignment() const { return memory_alignment_; }

  std::uint64_t size_bytes() const;
  // What the file has of the drive: less than its size where it has holes (or is compressed).
  // Throws IoError.
  std::uint64_t disk_bytes() const;
  // Makes the file exactly this long with all blocks allocated, so that a full disk is an error
  // here and not at a write. Throws IoError naming needed and free bytes on ENOSPC. On a file
  // system without fallocate the blocks are written with zeros instead. Contents up to the old size
  // are kept.
  void allocate(std::uint64_t size_bytes);
  // fdatasync: what was written survives loss of power. Blocks.
  void sync_data() const;

 private:
  void open_buffered(int flags, OpenMode mode, DirectIo direct);

  std::string path_;
  std::size_t drive_;
  UniqueFd fd_;
  bool direct_ = false;
  std::string why_buffered_;
  std::uint32_t offset_alignment_ = 1;
  std::uint32_t memory_alignment_ = 1;
};

// Free bytes for this process on the file system that holds `path` (statvfs f_bavail);
// kUnknownFreeBytes, more than any drive has, where the file system does not tell.
inline constexpr std::uint64_t kUnknownFreeBytes = std::uint64_t{1} << 62U;
std::uint64_t free_disk_bytes(const std::string& path);

}  // namespace sluice::nvme
