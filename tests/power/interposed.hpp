#pragma once
// Calls of the C library by which files change, in a library for LD_PRELOAD that stands in for
// them: here are those that only lead to other ones. The one source of such a library includes
// this, and defines open_instead(), fopen_instead(), pwrite(), ftruncate(), fallocate() and
// posix_fallocate().
//
// Thread-safe: functions without state.

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/types.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <string>

#define SLUICE_EXPORT extern "C" __attribute__((visibility("default")))

namespace sluice::power {

// `call`: the function's name, open or open64.
int open_instead(const char* call, const char* path, int flags, mode_t mode);
FILE* fopen_instead(const char* call, const char* path, const char* mode);

template <typename Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

using Open = int(const char*, int, ...);

inline std::string absolute(const char* path) {
  if (path[0] == '/') return path;
  char folder[PATH_MAX];
  return ::getcwd(folder, sizeof(folder)) == nullptr ? path : std::string(folder) + "/" + path;
}

inline mode_t mode_of(int flags, va_list arguments) {
  const bool creates = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  return creates ? va_arg(arguments, mode_t) : 0;
}

}  // namespace sluice::power

SLUICE_EXPORT int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = sluice::power::mode_of(flags, arguments);
  va_end(arguments);
  return sluice::power::open_instead("open", path, flags, mode);
}
SLUICE_EXPORT int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = sluice::power::mode_of(flags, arguments);
  va_end(arguments);
  return sluice::power::open_instead("open64", path, flags, mode);
}
SLUICE_EXPORT int creat(const char* path, mode_t mode) {
  return sluice::power::open_instead("open", path, O_WRONLY | O_CREAT | O_TRUNC, mode);
}
SLUICE_EXPORT FILE* fopen(const char* path, const char* mode) {
  return sluice::power::fopen_instead("fopen", path, mode);
}
SLUICE_EXPORT FILE* fopen64(const char* path, const char* mode) {
  return sluice::power::fopen_instead("fopen64", path, mode);
}
SLUICE_EXPORT ssize_t pwrite64(int fd, const void* data, size_t size, off_t offset) {
  return pwrite(fd, data, size, offset);
}
SLUICE_EXPORT int ftruncate64(int fd, off_t size) {
  return ftruncate(fd, size);
}
SLUICE_EXPORT int fallocate64(int fd, int mode, off_t offset, off_t size) {
  return fallocate(fd, mode, offset, size);
}
SLUICE_EXPORT int posix_fallocate64(int fd, off_t offset, off_t size) {
  return posix_fallocate(fd, offset, size);
}
