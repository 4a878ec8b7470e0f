// Replaces malloc by functions that count and call glibc's own under its other name.
#include "allocations.hpp"

#include <malloc.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLUICE_COUNTS_ALLOCATIONS 0
#elif defined(__GLIBC__)
#define SLUICE_COUNTS_ALLOCATIONS 1
#else
#define SLUICE_COUNTS_ALLOCATIONS 0
#endif

namespace sluice::fuzz {
namespace {

std::atomic<bool> counting = false;
std::atomic<std::size_t> largest_bytes = 0;
std::atomic<std::ptrdiff_t> held_bytes = 0;
std::atomic<std::ptrdiff_t> peak_bytes = 0;

#if SLUICE_COUNTS_ALLOCATIONS
template <typename Number>
void raise_to(std::atomic<Number>& most, Number value) {
  Number known = most.load();
  while (known < value && !most.compare_exchange_weak(known, value)) {
  }
}

// An allocation that fails counts too: a claim of 2^60 bytes is the claim that is looked for.
void* counted(void* memory, std::size_t size_bytes) {
  if (!counting) return memory;
  raise_to(largest_bytes, size_bytes);
  if (memory != nullptr) {
    const auto held = static_cast<std::ptrdiff_t>(::malloc_usable_size(memory));
    raise_to(peak_bytes, held_bytes.fetch_add(held) + held);
  }
  return memory;
}

void released(void* memory) {
  if (!counting || memory == nullptr) return;
  held_bytes -= static_cast<std::ptrdiff_t>(::malloc_usable_size(memory));
}
#endif

}  // namespace

void begin_counting_allocations() {
  largest_bytes = 0;
  held_bytes = 0;
  peak_bytes = 0;
  counting = true;
}

Allocations end_counting_allocations() {
  counting = false;
  return {largest_bytes, static_cast<std::size_t>(peak_bytes.load())};
}

}  // namespace sluice::fuzz

#if SLUICE_COUNTS_ALLOCATIONS
using sluice::fuzz::counted;
using sluice::fuzz::released;

// glibc's names and signatures.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" {
void* __libc_malloc(std::size_t);
void __libc_free(void*);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

__attribute__((visibility("default"))) void* malloc(std::size_t size_bytes) {
  return counted(__libc_malloc(size_bytes), size_bytes);
}
__attribute__((visibility("default"))) void free(void* memory) {
  released(memory);
  __libc_free(memory);
}
__attribute__((visibility("default"))) void* calloc(std::size_t count, std::size_t size_bytes) {
  return counted(__libc_calloc(count, size_bytes), count * size_bytes);
}
__attribute__((visibility("default"))) void* realloc(void* memory, std::size_t size_bytes) {
  released(memory);
  return counted(__libc_realloc(memory, size_bytes), size_bytes);
}
__attribute__((visibility("default"))) void* memalign(std::size_t alignment,
                                                      std::size_t size_bytes) {
  return counted(__libc_memalign(alignment, size_bytes), size_bytes);
}
__attribute__((visibility("default"))) void* aligned_alloc(std::size_t alignment,
                                                           std::size_t size_bytes) {
  return counted(__libc_memalign(alignment, size_bytes), size_bytes);
}
__attribute__((visibility("default"))) int posix_memalign(void** memory, std::size_t alignment,
                                                          std::size_t size_bytes) {
  *memory = counted(__libc_memalign(alignment, size_bytes), size_bytes);
  return *memory == nullptr ? ENOMEM : 0;
}
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
#endif
