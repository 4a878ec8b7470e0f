// A library for LD_PRELOAD that records, in their order, the calls by which a process changes files
// below SLUICE_RECORD_ROOT, in the file SLUICE_RECORD_LOG (appended to; outside of the root).
//   SLUICE_RECORD_MARKS   writes to files whose path contains this, and to standard output and
//                         error, are recorded as what the process said
//   SLUICE_RECORD_END     the process ends, as if killed, before the change of this number (from 1)
// It sees calls of the C library only: a run must use the threads backend, not io_uring. Writes
// through a mapping are not seen; the project has none.
//
// Thread-safe: one lock is held over each call and its entry, so that the order is the true one.

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "interposed.hpp"
#include "record_format.hpp"

namespace sluice::power {
namespace {

constexpr std::size_t kMostFds = 4096;

// Made before the first call and never destroyed: processes write until their very end.
struct Recorder {
  std::string root;
  std::string marks;
  int log_fd = -1;
  long changes = 0;
  long end_before = 0;
  std::array<std::uint64_t, kMostFds> inode_of{};  // 0: not below the root
  std::array<bool, kMostFds> says{};
};

pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

struct Locked {
  Locked() { ::pthread_mutex_lock(&lock); }
  ~Locked() { ::pthread_mutex_unlock(&lock); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
};

using Write = ssize_t(int, const void*, std::size_t);

Recorder& recorder() {
  static Recorder* const made = [] {
    auto* const fresh = new Recorder;
    const char* const root = std::getenv("SLUICE_RECORD_ROOT");
    const char* const log = std::getenv("SLUICE_RECORD_LOG");
    const char* const marks = std::getenv("SLUICE_RECORD_MARKS");
    const char* const end = std::getenv("SLUICE_RECORD_END");
    if (root == nullptr || log == nullptr) return fresh;
    fresh->root = root;
    fresh->marks = marks == nullptr ? "" : marks;
    fresh->end_before = end == nullptr ? 0 : std::atol(end);
    fresh->log_fd = real<Open>("open")(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    return fresh;
  }();
  return *made;
}

bool is_recording() {
  return recorder().log_fd >= 0;
}

// The path below the root, or empty. The project makes paths without ".." below its folders.
std::string below_root(const char* path) {
  const std::string& root = recorder().root;
  const std::string whole = absolute(path);
  if (whole.size() <= root.size() || whole.compare(0, root.size(), root) != 0) {
    return whole == root ? "." : "";
  }
  if (whole[root.size()] != '/') return "";
  std::string inside = whole.substr(root.size() + 1);
  while (!inside.empty() && inside.back() == '/') inside.pop_back();
  return inside;
}

void put(EntryHeader header, const std::string& name, const std::string& second, const void* data) {
  header.name_bytes = static_cast<std::uint32_t>(name.size());
  header.second_bytes = static_cast<std::uint32_t>(second.size());
  std::string entry(reinterpret_cast<const char*>(&header), sizeof(header));
  entry += name + second;
  if (header.data_bytes > 0) {
    entry.append(static_cast<const char*>(data), static_cast<std::size_t>(header.data_bytes));
  }
  static Write* const write_log = real<Write>("write");
  for (std::size_t done = 0; done < entry.size();) {
    const ssize_t written = write_log(recorder().log_fd, entry.data() + done, entry.size() - done);
    if (written <= 0) std::abort();
    done += static_cast<std::size_t>(written);
  }
}

// Called before each change, with the lock held.
void count_change() {
  Recorder& r = recorder();
  if (++r.changes == r.end_before) ::_exit(9);
}

std::uint64_t inode_at(const char* path) {
  struct stat status {};
  return ::lstat(path, &status) == 0 ? status.st_ino : 0;
}

std::uint64_t inode_of(int fd) {
  return fd >= 0 && static_cast<std::size_t>(fd) < kMostFds
             ? recorder().inode_of[static_cast<std::size_t>(fd)]
             : 0;
}

bool says(int fd) {
  if (fd == STDOUT_FILENO || fd == STDERR_FILENO) return true;
  return fd >= 0 && static_cast<std::size_t>(fd) < kMostFds &&
         recorder().says[static_cast<std::size_t>(fd)];
}

void remember(int fd, const char* path) {
  if (fd < 0) return;
  if (static_cast<std::size_t>(fd) >= kMostFds) std::abort();
  struct stat status {};
  const bool inside = !below_root(path).empty() && ::fstat(fd, &status) == 0;
  const std::string& marks = recorder().marks;
  recorder().inode_of[static_cast<std::size_t>(fd)] = inside ? status.st_ino : 0;
  recorder().says[static_cast<std::size_t>(fd)] =
      !marks.empty() && absolute(path).find(marks) != std::string::npos;
}

// Runs `call`, which writes at an offset, and records as much as it wrote.
template <typename Call>
ssize_t write_recorded(int fd, const iovec* pieces, int count, std::int64_t offset,
                       const Call& call) {
  if (!is_recording()) return call();
  const Locked locked;
  const std::uint64_t inode = inode_of(fd);
  const bool said = says(fd);
  if (inode == 0 && !said) return call();
  if (inode != 0) count_change();
  if (offset < 0 && inode != 0) {
    // With O_APPEND at the end; else at the position.
    const bool appends = (::fcntl(fd, F_GETFL) & O_APPEND) != 0;
    offset = ::lseek(fd, 0, appends ? SEEK_END : SEEK_CUR);
  }
  const ssize_t written = call();
  if (written <= 0) return written;
  const int error_number = errno;
  std::string data;
  for (int i = 0; i < count && data.size() < static_cast<std::size_t>(written); ++i) {
    data.append(static_cast<const char*>(pieces[i].iov_base), pieces[i].iov_len);
  }
  data.resize(static_cast<std::size_t>(written));
  if (said) put({.op = Op::mark, .data_bytes = data.size()}, "", "", data.data());
  if (inode != 0) {
    put({.op = Op::write,
         .inode = inode,
         .offset_bytes = static_cast<std::uint64_t>(offset),
         .data_bytes = data.size()},
        "", "", data.data());
  }
  errno = error_number;
  return written;
}

template <typename Call>
int size_recorded(int fd, Op op, std::int64_t size_bytes, const Call& call) {
  if (!is_recording()) return call();
  const Locked locked;
  if (inode_of(fd) != 0) count_change();
  const int result = call();
  if (result == 0 && inode_of(fd) != 0) {
    put({.op = op, .inode = inode_of(fd), .offset_bytes = static_cast<std::uint64_t>(size_bytes)},
        "", "", nullptr);
  }
  return result;
}

int sync_recorded(int fd, const char* name) {
  auto* const real_sync = real<int(int)>(name);
  if (!is_recording()) return real_sync(fd);
  const Locked locked;
  if (inode_of(fd) != 0) count_change();
  struct stat status {};
  const int result = real_sync(fd);
  if (result != 0 || inode_of(fd) == 0 || ::fstat(fd, &status) != 0) return result;
  const Op op = S_ISDIR(status.st_mode) ? Op::sync_folder : Op::sync_file;
  put({.op = op, .inode = inode_of(fd)}, "", "", nullptr);
  return result;
}

template <typename Call>
int names_recorded(Op op, const char* name, const char* second, const Call& call) {
  if (!is_recording()) return call();
  const Locked locked;
  const std::string inside = below_root(name);
  const std::string second_inside = second == nullptr ? "" : below_root(second);
  if (inside.empty() && second_inside.empty()) return call();
  // A name that comes from outside, or leaves, would need the bytes of its file.
  if (second != nullptr && (inside.empty() || second_inside.empty())) std::abort();
  count_change();
  const int result = call();
  if (result == 0) {
    const std::uint64_t inode = op == Op::make_folder ? inode_at(name) : 0;
    put({.op = op, .inode = inode}, inside, second_inside, nullptr);
  }
  return result;
}

int flags_of_mode(const char* mode) {
  const bool updates = std::strchr(mode, '+') != nullptr;
  if (mode[0] == 'r') return updates ? O_RDWR : O_RDONLY;
  return (updates ? O_RDWR : O_WRONLY) | O_CREAT | (mode[0] == 'a' ? O_APPEND : O_TRUNC);
}

}  // namespace

int open_instead(const char* call, const char* path, int flags, mode_t mode) {
  Open* const real_open = real<Open>(call);
  if (!is_recording()) return real_open(path, flags, mode);
  const Locked locked;
  const std::string name = below_root(path);
  const bool changes = !name.empty() && (flags & (O_CREAT | O_TRUNC)) != 0;
  const std::uint64_t before = changes ? inode_at(path) : 0;
  if (changes) count_change();
  const int fd = real_open(path, flags, mode);
  if (fd < 0) return fd;
  remember(fd, path);
  if (changes && before == 0) put({.op = Op::create, .inode = inode_of(fd)}, name, "", nullptr);
  if (changes && before != 0 && (flags & O_TRUNC) != 0) {
    put({.op = Op::resize, .inode = inode_of(fd)}, "", "", nullptr);
  }
  return fd;
}

// Streams that write have their own descriptor and calls inside the C library; only its iostreams
// (libstdc++ opens with fopen, writes with write) are followed.
FILE* fopen_instead(const char* /*call*/, const char* path, const char* mode) {
  const int flags = flags_of_mode(mode);
  const int fd = open_instead("open", path, flags, 0666);
  return fd < 0 ? nullptr : ::fdopen(fd, mode);
}

}  // namespace sluice::power

using namespace sluice::power;

SLUICE_EXPORT int close(int fd) {
  const Locked locked;
  if (is_recording() && fd >= 0 && static_cast<std::size_t>(fd) < kMostFds) {
    recorder().inode_of[static_cast<std::size_t>(fd)] = 0;
    recorder().says[static_cast<std::size_t>(fd)] = false;
  }
  return real<int(int)>("close")(fd);
}
SLUICE_EXPORT ssize_t write(int fd, const void* data, size_t size) {
  const iovec piece{const_cast<void*>(data), size};
  return write_recorded(fd, &piece, 1, -1, [&] { return real<Write>("write")(fd, data, size); });
}
SLUICE_EXPORT ssize_t writev(int fd, const iovec* pieces, int count) {
  return write_recorded(fd, pieces, count, -1, [&] {
    return real<ssize_t(int, const iovec*, int)>("writev")(fd, pieces, count);
  });
}
SLUICE_EXPORT ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  const iovec piece{const_cast<void*>(data), size};
  return write_recorded(fd, &piece, 1, offset, [&] {
    return real<ssize_t(int, const void*, size_t, off_t)>("pwrite")(fd, data, size, offset);
  });
}
SLUICE_EXPORT ssize_t pwritev(int fd, const iovec* pieces, int count, off_t offset) {
  return write_recorded(fd, pieces, count, offset, [&] {
    return real<ssize_t(int, const iovec*, int, off_t)>("pwritev")(fd, pieces, count, offset);
  });
}
SLUICE_EXPORT int ftruncate(int fd, off_t size) {
  return size_recorded(fd, Op::resize, size,
                       [&] { return real<int(int, off_t)>("ftruncate")(fd, size); });
}
SLUICE_EXPORT int fallocate(int fd, int mode, off_t offset, off_t size) {
  if (mode != 0) std::abort();  // holes and the like are not modelled
  return size_recorded(fd, Op::allocate, offset + size, [&] {
    return real<int(int, int, off_t, off_t)>("fallocate")(fd, mode, offset, size);
  });
}
SLUICE_EXPORT int posix_fallocate(int fd, off_t offset, off_t size) {
  return size_recorded(fd, Op::allocate, offset + size, [&] {
    return real<int(int, off_t, off_t)>("posix_fallocate")(fd, offset, size);
  });
}
SLUICE_EXPORT int fsync(int fd) {
  return sync_recorded(fd, "fsync");
}
SLUICE_EXPORT int fdatasync(int fd) {
  return sync_recorded(fd, "fdatasync");
}
SLUICE_EXPORT int rename(const char* from, const char* to) {
  return names_recorded(Op::rename, from, to,
                        [&] { return real<int(const char*, const char*)>("rename")(from, to); });
}
SLUICE_EXPORT int renameat2(int from_fd, const char* from, int to_fd, const char* to,
                            unsigned flags) {
  // RENAME_NOREPLACE changes nothing about what is durable; an exchange would.
  if (from_fd != AT_FDCWD || to_fd != AT_FDCWD || (flags & ~1U) != 0) std::abort();
  return names_recorded(Op::rename, from, to, [&] {
    return real<int(int, const char*, int, const char*, unsigned)>("renameat2")(from_fd, from,
                                                                                to_fd, to, flags);
  });
}
SLUICE_EXPORT int unlink(const char* path) {
  return names_recorded(Op::unlink, path, nullptr,
                        [&] { return real<int(const char*)>("unlink")(path); });
}
SLUICE_EXPORT int rmdir(const char* path) {
  return names_recorded(Op::unlink, path, nullptr,
                        [&] { return real<int(const char*)>("rmdir")(path); });
}
SLUICE_EXPORT int remove(const char* path) {
  return names_recorded(Op::unlink, path, nullptr,
                        [&] { return real<int(const char*)>("remove")(path); });
}
SLUICE_EXPORT int mkdir(const char* path, mode_t mode) {
  return names_recorded(Op::make_folder, path, nullptr,
                        [&] { return real<int(const char*, mode_t)>("mkdir")(path, mode); });
}
// Calls that the project does not make below its folders: a new use must be modelled first.
SLUICE_EXPORT int link(const char* from, const char* to) {
  if (is_recording() && !below_root(to).empty()) std::abort();
  return real<int(const char*, const char*)>("link")(from, to);
}
SLUICE_EXPORT int truncate(const char* path, off_t size) {
  if (is_recording() && !below_root(path).empty()) std::abort();
  return real<int(const char*, off_t)>("truncate")(path, size);
}
