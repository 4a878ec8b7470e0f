#pragma once
// A limit on the length of files, for what happens on a full disk. Not thread-safe: limits of a
// process.

#include <sys/resource.h>

#include <csignal>

namespace sluice::test {

// Files of the process end at `bytes` while it lives, as on a full disk.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) : handler_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit before_{};
  const sighandler_t handler_;
};

}  // namespace sluice::test
