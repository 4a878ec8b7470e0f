// A library for LD_PRELOAD: of the allocations of the thread that updates, number SLUICE_FAULT_AT
// fails, from 1. SLUICE_FAULT_LOG: a file that exists afterwards if there was such an allocation.
//
// Thread-safe: that thread alone counts.

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace {

constexpr const char* kThread = "sluice-update";

// Allocates nothing.
bool is_hit() {
  static const char* const asked = std::getenv("SLUICE_FAULT_AT");
  static const char* const log = std::getenv("SLUICE_FAULT_LOG");
  if (asked == nullptr || log == nullptr) return false;
  char name[16] = {};
  if (::prctl(PR_GET_NAME, name) != 0 || std::strcmp(name, kThread) != 0) return false;
  static thread_local long calls = 0;
  if (++calls != std::atol(asked)) return false;
  const int fd = ::open(log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  return fd < 0 || ::close(fd) == 0;
}

}  // namespace

__attribute__((visibility("default"))) void* operator new(std::size_t size) {
  if (is_hit()) throw std::bad_alloc();
  void* const memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

__attribute__((visibility("default"))) void operator delete(void* memory) noexcept {
  std::free(memory);
}

__attribute__((visibility("default"))) void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
