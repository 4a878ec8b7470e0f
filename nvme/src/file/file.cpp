#include "sluice/nvme/file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "file/space_advice.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/file/unshared.hpp"
#include "sluice/base/random_id.hpp"
#include "sluice/base/written.hpp"
#include "sluice/nvme/extend_file.hpp"

namespace sluice::nvme {

namespace {

// Alignment where the kernel does not tell: the page size, which suits every drive with sectors of
// up to 4 KiB.
constexpr std::uint32_t kFallbackAlignment = 4096;

int open_flags(OpenMode mode) {
  switch (mode) {
    case OpenMode::read_only:
      return O_RDONLY | O_CLOEXEC;
    case OpenMode::read_write:
      return O_RDWR | O_CLOEXEC;
    case OpenMode::create:
      break;
  }
  return O_RDWR | O_CREAT | O_CLOEXEC;
}

std::string open_advice(int error_number, OpenMode mode) {
  switch (error_number) {
    case ENOENT:
      return mode == OpenMode::create ? "its directory does not exist; create it first"
                                      : "the file does not exist";
    case EACCES:
    case EPERM:
      return "no permission; check the owner and mode of the file and its directory";
    case EISDIR:
      return "name a file in this directory";
    case EROFS:
      return "the file system is mounted read-only";
    default:
      return "";
  }
}

// open(2) that repeats EINTR; -1 with errno on failure.
int try_open(const std::string& path, int flags) {
  // O_NONBLOCK: opening a FIFO fails instead of waiting. Regular files ignore the flag.
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_NONBLOCK, 0600);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

struct DirectAlignment {
  std::uint32_t memory_bytes = kFallbackAlignment;
  // 0 when the file has no direct I/O.
  std::uint32_t offset_bytes = kFallbackAlignment;
  bool told = false;  // by the kernel
};

// Alignment from statx STATX_DIOALIGN (Linux 6.1). The fields are read at their offsets in the
// kernel's ABI (include/uapi/linux/stat.h), because the headers of many distributions are older.
DirectAlignment direct_alignment(int fd) {
  constexpr unsigned kStatxDioAlign = 0x2000U;
  constexpr std::size_t kMemoryAlignAt = 0x98;
  constexpr std::size_t kOffsetAlignAt = 0x9c;
  struct statx info {};
  static_assert(sizeof(info) == 256);
  DirectAlignment alignment;
  if (::statx(fd, "", AT_EMPTY_PATH, kStatxDioAlign, &info) != 0) return alignment;
  if ((info.stx_mask & kStatxDioAlign) == 0) return alignment;
  const char* bytes = reinterpret_cast<const char*>(&info);
  std::memcpy(&alignment.memory_bytes, bytes + kMemoryAlignAt, sizeof(std::uint32_t));
  std::memcpy(&alignment.offset_bytes, bytes + kOffsetAlignAt, sizeof(std::uint32_t));
  alignment.told = true;
  return alignment;
}

// A new file for direct I/O in the directory of `path`, which nobody else sees for longer than a
// moment. Empty where there can be none.
UniqueFd unnamed_sibling(const std::string& path) {
  std::string name = path.substr(0, path.rfind('/') + 1) + ".sluice-direct-XXXXXX";
  UniqueFd fd(::mkostemp(name.data(), O_DIRECT | O_CLOEXEC));
  if (fd) ::unlink(name.c_str());
  return fd;
}

// "pwrite" or "pread" where the file system answers EINVAL to that call on an aligned block, though
// its open() took O_DIRECT: some in user space do. Else empty. Other failures are left to the
// transfers. Writes to a file of its own, because another process may have this one open.
std::string refused_direct_call(int fd, const std::string& path, OpenMode mode) {
  alignas(kFallbackAlignment) std::array<std::byte, kFallbackAlignment> block{};
  const auto is_refused = [](auto call) {
    ssize_t result = 0;
    do {
      result = call();
    } while (result < 0 && errno == EINTR);
    return result < 0 && errno == EINVAL;
  };
  const UniqueFd sibling = mode == OpenMode::read_only ? UniqueFd() : unnamed_sibling(path);
  if (sibling && is_refused([&] { return ::pwrite(sibling.get(), &block, sizeof(block), 0); })) {
    return "pwrite";
  }
  const int read_from = sibling ? sibling.get() : fd;
  return is_refused([&] { return ::pread(read_from, &block, sizeof(block), 0); }) ? "pread" : "";
}

// Writes a zero byte over the last zero byte of each page of [begin_bytes, size_bytes), so that
// every block is there; returns 0 or an errno. Not posix_fallocate: where the system lacks
// fallocate itself (ENOSYS), glibc's has no replacement.
int write_into_holes(int fd, std::uint64_t begin_bytes, std::uint64_t size_bytes) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return errno;
  const auto old_bytes = static_cast<std::uint64_t>(info.st_size);
  for (std::uint64_t begin = align_down(begin_bytes, kFallbackAlignment); begin < size_bytes;
       begin += kFallbackAlignment) {
    const std::uint64_t at =
        begin + std::min<std::uint64_t>(kFallbackAlignment, size_bytes - begin) - 1;
    char byte = 0;
    ssize_t result = 0;
    if (at < old_bytes) {
      do {
        result = ::pread(fd, &byte, 1, static_cast<off_t>(at));
      } while (result < 0 && errno == EINTR);
    }
    if (result >= 0 && byte == 0) {
      do {
        result = ::pwrite(fd, &byte, 1, static_cast<off_t>(at));
      } while (result < 0 && errno == EINTR);
    }
    if (result < 0) return errno;
  }
  return 0;
}

// Allocates the blocks of [0, size_bytes); where there is no fallocate, those from begin_bytes on.
// The file is then at least that long. Returns 0 or an errno.
int reserve_blocks(int fd, const std::string& path, std::uint64_t begin_bytes,
                   std::uint64_t size_bytes) {
  int result = 0;
  do {
    result = ::fallocate(fd, 0, 0, static_cast<off_t>(size_bytes)) == 0 ? 0 : errno;
  } while (result == EINTR);
  if (result != EOPNOTSUPP && result != ENOSYS) return result;
  // These writes are too small for O_DIRECT and need a buffered descriptor.
  const UniqueFd buffered(try_open(path, O_RDWR | O_CLOEXEC));
  if (!buffered) return errno;
  return write_into_holes(buffered.get(), begin_bytes, size_bytes);
}

void check_is_regular(int fd, const std::string& path) {
  struct stat info {};
  SLUICE_SYSCALL(::fstat(fd, &info), path);
  if (!S_ISREG(info.st_mode))
    throw IoError(EINVAL, "open", path, 0, 0, "is not a regular file; name a file");
}

// Takes the file for its owner. Who only looks whether it has one takes it for a moment.
bool lock_soon(int fd, const std::string& path) {
  constexpr int kTries = 100;
  constexpr std::chrono::milliseconds kPause(1);
  for (int i = 1; !try_flock(fd, LOCK_EX, path); ++i) {
    if (i == kTries) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

}  // namespace

SwapFile::SwapFile(std::string path, OpenMode mode, DirectIo direct, std::size_t drive)
    : path_(std::move(path)), drive_(drive) {
  const int flags = open_flags(mode);
  if (direct == DirectIo::off) {
    why_buffered_ = "direct I/O is switched off";
  } else {
    fd_ = UniqueFd(try_open(path_, flags | O_DIRECT));
    if (!fd_ && errno == EINVAL) {
      why_buffered_ = "the file system refuses O_DIRECT (open: EINVAL)";
    } else if (!fd_) {
      throw IoError(errno, "open", path_, 0, 0, open_advice(errno, mode));
    }
  }
  if (fd_) use_direct_io(mode);
  if (!direct_) open_buffered(flags, mode, direct);
  check_is_regular(fd_.get(), path_);
  // Clears O_NONBLOCK: on a non-blocking descriptor, io_uring fails requests that would wait.
  SLUICE_SYSCALL(::fcntl(fd_.get(), F_SETFL, direct_ ? O_DIRECT : 0), path_);
}

std::optional<SwapFile> SwapFile::open_locked(const std::string& path, DirectIo direct,
                                              std::size_t drive) {
  for (;;) {
    UniqueFd lock = open_unshared(path, O_RDWR | O_CREAT | O_NONBLOCK, 0600);
    if (!lock) throw IoError(errno, "open", path, 0, 0, open_advice(errno, OpenMode::create));
    check_is_regular(lock.get(), path);
    if (!lock_soon(lock.get(), path)) return std::nullopt;
    // Owners remove their file while they have it locked: the name stays from here on.
    if (!is_file_at(lock.get(), path)) continue;
    try {
      SwapFile file(path, OpenMode::read_write, direct, drive);
      file.lock_ = std::move(lock);
      return file;
    } catch (...) {
      struct stat info {};
      if (::fstat(lock.get(), &info) == 0 && info.st_size == 0) remove_file_quietly(path);
      throw;
    }
  }
}

void SwapFile::use_direct_io(OpenMode mode) {
  check_is_regular(fd_.get(), path_);  // a device must not be read
  const DirectAlignment alignment = direct_alignment(fd_.get());
  if (alignment.offset_bytes == 0) {
    why_buffered_ = "the file system does no direct I/O on this file (statx)";
  } else if (alignment.offset_bytes > kPageBytes) {
    why_buffered_ = "direct I/O there moves blocks of " + format_bytes(alignment.offset_bytes) +
                    ", and files are laid out in blocks of " + format_bytes(kPageBytes);
  } else if (!alignment.told) {
    const std::string call = refused_direct_call(fd_.get(), path_, mode);
    if (!call.empty()) why_buffered_ = "the file system refuses O_DIRECT (" + call + ": EINVAL)";
  }
  direct_ = why_buffered_.empty();
  if (direct_) {
    offset_alignment_ = alignment.offset_bytes;
    memory_alignment_ = alignment.memory_bytes;
  } else {
    fd_.reset();
  }
}

void SwapFile::open_buffered(int flags, OpenMode mode, DirectIo direct) {
  if (direct == DirectIo::on) {
    throw IoError(EINVAL, "open for direct I/O", path_, 0, 0,
                  why_buffered_ + "; choose another file system or switch direct I/O to auto");
  }
  fd_ = UniqueFd(try_open(path_, flags));
  if (!fd_) throw IoError(errno, "open", path_, 0, 0, open_advice(errno, mode));
}

std::uint64_t SwapFile::size_bytes() const {
  struct stat info {};
  SLUICE_SYSCALL(::fstat(fd_.get(), &info), path_);
  return static_cast<std::uint64_t>(info.st_size);
}

std::uint64_t SwapFile::disk_bytes() const {
  struct stat info {};
  SLUICE_SYSCALL(::fstat(fd_.get(), &info), path_);
  return static_cast<std::uint64_t>(info.st_blocks) * kBytesPerStatBlock;
}

namespace {

std::string free_space_advice(const std::string& path, std::uint64_t size_bytes,
                              std::uint64_t old_bytes) {
  const std::uint64_t free_bytes = free_disk_bytes(path);
  const bool is_enough = free_bytes != kUnknownFreeBytes && size_bytes > old_bytes &&
                         size_bytes - old_bytes < free_bytes;
  return "needed " + format_bytes(size_bytes) + ", of which the file had " +
         format_bytes(old_bytes) + "; " + what_is_free(free_bytes) +
         (is_enough ? ", which is enough: " + std::string(kSpaceBesideBytes)
                    : "; free some space or choose another directory");
}

[[noreturn]] void throw_not_allocated(int error_number, const std::string& path,
                                      std::uint64_t size_bytes, std::uint64_t old_bytes) {
  throw IoError(error_number, "allocation", path, 0, size_bytes,
                error_number == ENOSPC ? free_space_advice(path, size_bytes, old_bytes) : "");
}

}  // namespace

void SwapFile::allocate(std::uint64_t size_bytes) {
  const std::uint64_t old_bytes = this->size_bytes();
  if (size_bytes > 0) {
    const int error_number = reserve_blocks(fd_.get(), path_, 0, size_bytes);
    if (error_number != 0) {
      // Returns the blocks that a failed attempt left beyond the old end.
      if (this->size_bytes() > old_bytes) {
        SLUICE_SYSCALL(::ftruncate(fd_.get(), static_cast<off_t>(old_bytes)), path_);
      }
      throw_not_allocated(error_number, path_, size_bytes, old_bytes);
    }
  }
  SLUICE_SYSCALL(::ftruncate(fd_.get(), static_cast<off_t>(size_bytes)), path_);
}

void extend_file(const SwapFile& file, std::uint64_t begin_bytes, std::uint64_t end_bytes) {
  const std::uint64_t old_bytes = file.size_bytes();
  if (old_bytes >= end_bytes) return;
  // No truncation afterwards, not even of a failure: it could cut off another owner's bytes.
  const int error_number = reserve_blocks(file.fd(), file.path(), begin_bytes, end_bytes);
  if (error_number != 0) throw_not_allocated(error_number, file.path(), end_bytes, old_bytes);
}

SwapFile make_nameless_file(const std::string& directory, std::uint64_t size_bytes) {
  const std::string path = directory + "/.sluice-probe-" + random_id();
  SwapFile file(path, OpenMode::create, DirectIo::automatic);
  try {
    file.allocate(size_bytes);
  } catch (...) {
    remove_file_quietly(path);
    throw;
  }
  remove_file(path);
  return file;
}

void SwapFile::sync_data() const {
  SLUICE_SYSCALL(::fdatasync(fd_.get()), path_);
}

std::uint64_t free_disk_bytes(const std::string& path) {
  struct statvfs info {};
  SLUICE_SYSCALL(::statvfs(path.c_str(), &info), path);
  // File systems without a block count (ramfs, some network file systems) do not tell.
  if (info.f_blocks == 0) return kUnknownFreeBytes;
  std::uint64_t free = 0;  // an object store's numbers may be beyond every drive's
  if (__builtin_mul_overflow(info.f_bavail, info.f_frsize, &free)) return kUnknownFreeBytes;
  return std::min(free, kUnknownFreeBytes);
}

}  // namespace sluice::nvme
