#pragma once
// Limits that a process sets for itself and takes back. in_child.hpp has those for good.
// Not thread-safe: limits of a process.

#include <sys/resource.h>

#include <csignal>

namespace sluice::test {

// A soft limit of the process while it lives.
class SoftLimit {
 public:
  SoftLimit(decltype(RLIMIT_FSIZE) resource, rlim_t value) : resource_(resource) {
    ::getrlimit(resource_, &before_);
    const rlimit limit{value, before_.rlim_max};
    ::setrlimit(resource_, &limit);
  }
  ~SoftLimit() { ::setrlimit(resource_, &before_); }
  SoftLimit(const SoftLimit&) = delete;
  SoftLimit& operator=(const SoftLimit&) = delete;

 private:
  decltype(RLIMIT_FSIZE) resource_;
  rlimit before_{};
};

// Files of the process end at `bytes` while it lives, as on a full disk.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) : limit_(RLIMIT_FSIZE, bytes) {}

 private:
  struct IgnoredSignal {
    ~IgnoredSignal() { ::signal(SIGXFSZ, before); }
    const sighandler_t before = ::signal(SIGXFSZ, SIG_IGN);
  };

  const IgnoredSignal signal_;
  const SoftLimit limit_;
};

}  // namespace sluice::test
