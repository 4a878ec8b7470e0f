#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/executor.hpp"
#include "sluice/base/file/proc.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/threads.hpp"
#include "sluice/offload/memory_pool.hpp"

namespace sluice::offload {

namespace {

// From here on a block is a mapping of its own, so that freeing it shrinks the resident set; below,
// the page table and system call would cost more than the block.
constexpr std::size_t kMapFromBytes = 64 * kKiB;
// Two huge pages of 2 MiB: a block of this size surely contains an aligned one.
constexpr std::size_t kHugeFromBytes = 4 * kMiB;
constexpr std::size_t kLineBytes = 64;

void* map_pages(std::size_t size_bytes, InChildren in_children) {
  void* block =
      ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) return nullptr;
  // Advice: kernels without transparent huge pages refuse it, and nothing else changes.
  if (size_bytes >= kHugeFromBytes) ::madvise(block, size_bytes, MADV_HUGEPAGE);
  if (in_children == InChildren::absent) ::madvise(block, size_bytes, MADV_DONTFORK);
  return block;
}

void unmap_pages(void* block, std::size_t size_bytes) noexcept {
  if (::munmap(block, size_bytes) != 0) {
    log(LogLevel::error, std::string("munmap: ") + std::strerror(errno));
  }
}

// Faults in a block that will be locked or registered, on all cores; otherwise the system clears
// its pages on the one thread that asks. Pages that cannot be had now are left to the lock, which
// says so.
void fault_in([[maybe_unused]] void* block, [[maybe_unused]] std::size_t size_bytes) {
#ifdef MADV_POPULATE_WRITE
  constexpr std::size_t kPart = 32 * kMiB;  // whole huge pages
  if (size_bytes < 2 * kPart) return;
  try {
    const auto executor = make_executor(allowed_cores().value_or(1), ExecutorKind::plain_threads);
    executor->for_each(ceil_div(size_bytes, kPart), [&](std::size_t part) {
      auto* const begin = static_cast<std::byte*>(block) + part * kPart;
      ::madvise(begin, std::min(kPart, size_bytes - part * kPart), MADV_POPULATE_WRITE);
    });
  } catch (const Error& error) {  // the system refuses a thread
    log(LogLevel::debug, std::string("memory is faulted in by one thread: ") + error.what());
  }
#endif
}

class HostSource final : public MemorySource {
 public:
  explicit HostSource(InChildren in_children) : in_children_(in_children) {}

  void* allocate(std::size_t size_bytes) override {
    if (size_bytes >= kMapFromBytes) return map_pages(size_bytes, in_children_);
    return std::aligned_alloc(size_bytes >= kPageBytes ? kPageBytes : kLineBytes, size_bytes);
  }
  void free(void* block, std::size_t size_bytes) noexcept override {
    if (size_bytes >= kMapFromBytes) return unmap_pages(block, size_bytes);
    std::free(block);
  }

 private:
  const InChildren in_children_;
};

class PageSource final : public MemorySource {
 public:
  void* allocate(std::size_t size_bytes) override {
    void* block = map_pages(size_bytes, InChildren::absent);
    if (block != nullptr) fault_in(block, size_bytes);
    return block;
  }
  void free(void* block, std::size_t size_bytes) noexcept override {
    unmap_pages(block, size_bytes);
  }
};

// Throws when it is the limit that a lock of `size_bytes` would break.
void check_lock_limit(std::uint64_t size_bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  const std::uint64_t locked = proc_bytes("/proc/self/status", {"VmLck"}).value_or(0);
  // With more locked than the limit allows, the process has CAP_IPC_LOCK and the limit does not
  // hold.
  if (locked > limit.rlim_cur || size_bytes <= limit.rlim_cur - locked) return;
  throw OutOfMemory(
      std::string(name_of(Tier::pinned)), size_bytes, limit.rlim_cur - locked,
      "cannot lock memory: RLIMIT_MEMLOCK is " + std::to_string(limit.rlim_cur) + " bytes (" +
          format_bytes(limit.rlim_cur) + "), " + std::to_string(locked) +
          " of them in use; raise it (ulimit -l unlimited; memlock in /etc/security/limits.conf; "
          "LimitMEMLOCK=infinity of a systemd unit; --ulimit memlock=-1 of a container)");
}

// A weakness: a block below one page still locks a page, which the pool does not count. Pinned
// memory is for tiles and shards, which are larger.
class PinnedSource final : public MemorySource {
 public:
  void* allocate(std::size_t size_bytes) override {
    void* block = map_pages(size_bytes, InChildren::absent);
    if (block == nullptr) return nullptr;
    fault_in(block, size_bytes);
    // mlock2, because the sanitizers replace mlock by nothing.
    if (::mlock2(block, size_bytes, 0) == 0) return block;
    unmap_pages(block, size_bytes);
    check_lock_limit(size_bytes);
    return nullptr;
  }
  void free(void* block, std::size_t size_bytes) noexcept override {
    unmap_pages(block, size_bytes);  // unlocks it, too
  }
};

}  // namespace

std::unique_ptr<MemorySource> make_host_source(InChildren in_children) {
  return std::make_unique<HostSource>(in_children);
}
std::unique_ptr<MemorySource> make_page_source() {
  return std::make_unique<PageSource>();
}
std::unique_ptr<MemorySource> make_pinned_source() {
  return std::make_unique<PinnedSource>();
}

}  // namespace sluice::offload
