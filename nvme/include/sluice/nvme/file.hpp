#pragma once
// SwapFile: one open file for direct I/O, with the alignment that its file system demands. It is
// neither a cache nor a layout: the caller decides which bytes lie where.
//
// Move-only owner of the descriptor. Thread-compatible: callers synchronise; any number of threads
// may use a const SwapFile.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "sluice/base/fd.hpp"

namespace sluice::nvme {

// Use of O_DIRECT, which bypasses the page cache. `automatic`: O_DIRECT where the file system takes
// it in blocks of at most kPageBytes, else buffered; why_buffered() then gives the reason in one
// line. Files are laid out in such blocks: in a larger one, the writes of two neighbours would
// overwrite each other with old bytes. Where the kernel does not say whether direct I/O works,
// opening finds out with one block, in a file without a name beside `path`; in read_only mode by
// reading the first block.
enum class DirectIo { automatic, on, off };
enum class OpenMode { read_only, read_write, create };

class SwapFile {
 public:
  // Opens `path`; OpenMode::create makes a missing file with mode 0600 and keeps an existing one.
  // `drive`: the queue of an IoEngine that moves the file's bytes. Throws IoError with the path,
  // also for a file that is not regular. With DirectIo::on it throws when the file system refuses
  // O_DIRECT; an empty file created by that attempt stays.
  SwapFile(std::string path, OpenMode mode, DirectIo direct, std::size_t drive = 0);
  // Opens the file `path`, created where it is missing, and takes flock(2) on it alone, until it is
  // closed. Empty where another process, or another SwapFile of this one, has it locked for longer
  // than a moment. The file is the one that has the name, also where the owner before removed its
  // own. A ring of io_uring keeps its files open after its process, and so do forked children:
  // neither keeps this lock. Throws IoError as the constructor; then a file without bytes is gone.
  static std::optional<SwapFile> open_locked(const std::string& path, DirectIo direct,
                                             std::size_t drive = 0);

  const std::string& path() const { return path_; }
  std::size_t drive() const { return drive_; }
  int fd() const { return fd_.get(); }
  bool direct() const { return direct_; }
  // Why the file is buffered; empty when it is direct.
  const std::string& why_buffered() const { return why_buffered_; }
  // A transfer needs no bounce buffer when its offset and size are multiples of offset_alignment()
  // and its address is a multiple of memory_alignment(). From statx DIOALIGN; 4096 where the kernel
  // does not tell; 1 when buffered. For offsets at most kPageBytes.
  std::uint32_t offset_alignment() const { return offset_alignment_; }
  std::uint32_t memory_alignment() const { return memory_alignment_; }

  // Length of the file. Throws IoError.
  std::uint64_t size_bytes() const;
  // Bytes that the file occupies on the drive: fewer than its length when it has holes or is
  // compressed. Throws IoError.
  std::uint64_t disk_bytes() const;
  // Makes the file exactly `size_bytes` long with all blocks allocated, so that a full disk fails
  // here instead of at a write. Bytes below the old length stay. Writes zeros into the new blocks
  // where the file system or the system has no fallocate. Blocks. Throws IoError; on ENOSPC with
  // needed and free bytes.
  void allocate(std::uint64_t size_bytes);
  // fdatasync: afterwards, the bytes written so far survive a loss of power. Blocks. Throws
  // IoError.
  void sync_data() const;

 private:
  // Keeps the descriptor for direct I/O, or says why not and closes it.
  void use_direct_io(OpenMode mode);
  void open_buffered(int flags, OpenMode mode, DirectIo direct);

  std::string path_;
  std::size_t drive_;
  UniqueFd fd_;
  UniqueFd lock_;  // empty unless open_locked() made this
  bool direct_ = false;
  std::string why_buffered_;
  std::uint32_t offset_alignment_ = 1;
  std::uint32_t memory_alignment_ = 1;
};

// A file of `size_bytes` allocated bytes in the directory, open for direct I/O where possible. Its
// name is gone, and its bytes are when it is closed. Throws IoError. Thread-safe.
SwapFile make_nameless_file(const std::string& directory, std::uint64_t size_bytes = 0);

// More than any drive has free.
inline constexpr std::uint64_t kUnknownFreeBytes = std::uint64_t{1} << 62U;
// Free bytes for this process on the file system that holds `path` (statvfs f_bavail);
// kUnknownFreeBytes where it does not tell, or tells of more. Throws IoError. Thread-safe.
std::uint64_t free_disk_bytes(const std::string& path);

}  // namespace sluice::nvme
