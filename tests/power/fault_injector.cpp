// A library for LD_PRELOAD that counts the calls by which a process changes or syncs files below
// SLUICE_FAULT_ROOT, and makes the drive fail at one of them.
//   SLUICE_FAULT       ENOSPC, EIO: the call fails; EROFS: it and all later ones fail, as after a
//                      read-only remount; gone: the root is renamed to ROOT.gone before the call;
//                      kill: the process is killed before the call
//   SLUICE_FAULT_AT    the number of the call, from 1; 0: none fails. With EIO calls of pread count
//   SLUICE_FAULT_LOG   a file outside of the root: one line for each call that counts
//   SLUICE_FAULT_CLOSE a part of paths: each close of such a file closes it and fails with EIO
// It sees calls of the C library only: a run must use the threads backend, not io_uring.
//
// Thread-safe: calls are counted atomically, and the log is appended to line by line.

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "interposed.hpp"

namespace sluice::power {
namespace {

using Rename = int(const char*, const char*);

// Made before the first call and never destroyed: processes write until their very end.
struct Injector {
  std::string root;
  int error_number = 0;  // 0: the root goes away, or the process is killed
  bool kills = false;
  bool lasts = false;
  bool reads_count = false;
  long at = 0;
  int log_fd = -1;
  std::atomic<long> calls{0};
};

std::string setting(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? "" : text;
}

Injector& injector() {
  static Injector* const made = [] {
    auto* const fresh = new Injector;
    const std::string fault = setting("SLUICE_FAULT");
    fresh->root = setting("SLUICE_FAULT_ROOT");
    fresh->at = std::atol(setting("SLUICE_FAULT_AT").c_str());
    fresh->reads_count = fault == "EIO";
    fresh->lasts = fault == "EROFS";
    fresh->kills = fault == "kill";
    if (fault == "ENOSPC") fresh->error_number = ENOSPC;
    if (fault == "EIO") fresh->error_number = EIO;
    if (fault == "EROFS") fresh->error_number = EROFS;
    if (fault != "gone" && !fresh->kills && fresh->error_number == 0) return fresh;
    fresh->log_fd = real<Open>("open")(setting("SLUICE_FAULT_LOG").c_str(),
                                       O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    return fresh;
  }();
  return *made;
}

// Calls before main() come while the library is loaded; they are not below the root.
bool is_below_root(const std::string& path) {
  const std::string& root = injector().root;
  return injector().log_fd >= 0 && path.size() > root.size() && path.starts_with(root) &&
         path[root.size()] == '/';
}

std::string path_of(int fd) {
  char path[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t size = ::readlink(link.c_str(), path, sizeof(path));
  return size < 0 ? "" : std::string(path, static_cast<std::size_t>(size));
}

std::string path_at(int folder, const char* path) {
  return folder == AT_FDCWD || path[0] == '/' ? absolute(path) : path_of(folder) + "/" + path;
}

// The errno with which the call fails; 0: it is made.
int error_of(const char* call, const std::string& path) {
  Injector& drive = injector();
  if (!is_below_root(path)) return 0;
  const long number = ++drive.calls;
  const bool hit = drive.at != 0 && (number == drive.at || (drive.lasts && number > drive.at));
  const std::string line =
      std::string(call) + " " + path + (hit ? " <- " + setting("SLUICE_FAULT") : "") + "\n";
  static auto* const write_log = real<ssize_t(int, const void*, std::size_t)>("write");
  if (write_log(drive.log_fd, line.data(), line.size()) < 0) std::abort();
  if (!hit) return 0;
  if (drive.kills) {
    ::kill(::getpid(), SIGKILL);
    for (;;) ::pause();  // the signal may reach another thread first
  }
  if (drive.error_number == 0 &&
      real<Rename>("rename")(drive.root.c_str(), (drive.root + ".gone").c_str()) != 0) {
    std::abort();
  }
  return drive.error_number;
}

template <typename Call>
auto fail_or(const char* name, const std::string& path, const Call& call) -> decltype(call()) {
  const int before = errno;
  if (const int error_number = error_of(name, path); error_number != 0) {
    errno = error_number;
    return -1;
  }
  errno = before;
  return call();
}

}  // namespace

int open_instead(const char* call, const char* path, int flags, mode_t mode) {
  const auto open_it = [&] { return real<Open>(call)(path, flags, mode); };
  const bool changes = (flags & (O_CREAT | O_TRUNC)) != 0 || (flags & O_ACCMODE) != O_RDONLY;
  return changes ? fail_or("open", absolute(path), open_it) : open_it();
}

FILE* fopen_instead(const char* call, const char* path, const char* mode) {
  const bool changes = mode[0] != 'r' || std::string(mode).find('+') != std::string::npos;
  const int result = changes ? fail_or("open", absolute(path), [] { return 0; }) : 0;
  return result != 0 ? nullptr : real<FILE*(const char*, const char*)>(call)(path, mode);
}

}  // namespace sluice::power

using namespace sluice::power;

SLUICE_EXPORT ssize_t write(int fd, const void* data, size_t size) {
  return fail_or("write", path_of(fd),
                 [&] { return real<ssize_t(int, const void*, size_t)>("write")(fd, data, size); });
}
SLUICE_EXPORT ssize_t writev(int fd, const iovec* pieces, int count) {
  return fail_or("writev", path_of(fd), [&] {
    return real<ssize_t(int, const iovec*, int)>("writev")(fd, pieces, count);
  });
}
SLUICE_EXPORT ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  return fail_or("pwrite", path_of(fd), [&] {
    return real<ssize_t(int, const void*, size_t, off_t)>("pwrite")(fd, data, size, offset);
  });
}
SLUICE_EXPORT ssize_t pwritev(int fd, const iovec* pieces, int count, off_t offset) {
  return fail_or("pwritev", path_of(fd), [&] {
    return real<ssize_t(int, const iovec*, int, off_t)>("pwritev")(fd, pieces, count, offset);
  });
}
SLUICE_EXPORT ssize_t pread(int fd, void* data, size_t size, off_t offset) {
  const auto read_it = [&] {
    return real<ssize_t(int, void*, size_t, off_t)>("pread")(fd, data, size, offset);
  };
  return injector().reads_count ? fail_or("pread", path_of(fd), read_it) : read_it();
}
SLUICE_EXPORT ssize_t pread64(int fd, void* data, size_t size, off_t offset) {
  return pread(fd, data, size, offset);
}
SLUICE_EXPORT int ftruncate(int fd, off_t size) {
  return fail_or("ftruncate", path_of(fd),
                 [&] { return real<int(int, off_t)>("ftruncate")(fd, size); });
}
SLUICE_EXPORT int fallocate(int fd, int mode, off_t offset, off_t size) {
  return fail_or("fallocate", path_of(fd), [&] {
    return real<int(int, int, off_t, off_t)>("fallocate")(fd, mode, offset, size);
  });
}
// Returns the error's number, and leaves errno.
SLUICE_EXPORT int posix_fallocate(int fd, off_t offset, off_t size) {
  const int error_number = error_of("posix_fallocate", path_of(fd));
  return error_number != 0 ? error_number
                           : real<int(int, off_t, off_t)>("posix_fallocate")(fd, offset, size);
}
SLUICE_EXPORT int fsync(int fd) {
  return fail_or("fsync", path_of(fd), [&] { return real<int(int)>("fsync")(fd); });
}
SLUICE_EXPORT int fdatasync(int fd) {
  return fail_or("fdatasync", path_of(fd), [&] { return real<int(int)>("fdatasync")(fd); });
}
SLUICE_EXPORT int close(int fd) {
  static const auto* const part = new std::string(setting("SLUICE_FAULT_CLOSE"));
  const bool fails = !part->empty() && path_of(fd).find(*part) != std::string::npos;
  const int result = real<int(int)>("close")(fd);
  if (!fails) return result;
  errno = EIO;
  return -1;
}
SLUICE_EXPORT int rename(const char* from, const char* to) {
  return fail_or("rename", absolute(to), [&] { return real<Rename>("rename")(from, to); });
}
SLUICE_EXPORT int renameat2(int from_fd, const char* from, int to_fd, const char* to,
                            unsigned flags) {
  return fail_or("rename", path_at(to_fd, to), [&] {
    return real<int(int, const char*, int, const char*, unsigned)>("renameat2")(from_fd, from,
                                                                                to_fd, to, flags);
  });
}
SLUICE_EXPORT int unlink(const char* path) {
  return fail_or("unlink", absolute(path), [&] { return real<int(const char*)>("unlink")(path); });
}
SLUICE_EXPORT int unlinkat(int folder, const char* path, int flags) {
  return fail_or("unlink", path_at(folder, path),
                 [&] { return real<int(int, const char*, int)>("unlinkat")(folder, path, flags); });
}
SLUICE_EXPORT int rmdir(const char* path) {
  return fail_or("rmdir", absolute(path), [&] { return real<int(const char*)>("rmdir")(path); });
}
SLUICE_EXPORT int remove(const char* path) {
  return fail_or("unlink", absolute(path), [&] { return real<int(const char*)>("remove")(path); });
}
SLUICE_EXPORT int mkdir(const char* path, mode_t mode) {
  return fail_or("mkdir", absolute(path),
                 [&] { return real<int(const char*, mode_t)>("mkdir")(path, mode); });
}
