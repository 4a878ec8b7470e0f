#include "core/process.hpp"

#include <pthread.h>

#include <atomic>

namespace sluice::python {

namespace {
std::atomic<std::uint64_t> forks{0};
}  // namespace

void count_forks() {
  ::pthread_atfork(nullptr, nullptr, [] { ++forks; });
}

std::uint64_t fork_count() noexcept {
  return forks.load();
}

}  // namespace sluice::python
