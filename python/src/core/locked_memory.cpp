#include "core/locked_memory.hpp"

#include <pybind11/pybind11.h>
#include <sys/mman.h>

#include "sluice/base/error.hpp"
#include "sluice/plan/machine.hpp"
#include "sluice/plan/memory_limits.hpp"

namespace sluice::python {

LockedMemory::LockedMemory(std::size_t size_bytes) {
  SLUICE_CHECK(size_bytes > 0, "page-locked memory of 0 bytes was asked for");
  const pybind11::gil_scoped_release release;
  void* const memory = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0);
  if (memory == MAP_FAILED)
    throw OutOfMemory("host", size_bytes, plan::available_memory_bytes(), "page-locked memory");
  if (::mlock(memory, size_bytes) != 0) {
    ::munmap(memory, size_bytes);
    throw OutOfMemory("host", size_bytes, plan::lockable_bytes(),
                      "page-locked memory (the limit is RLIMIT_MEMLOCK; raise it with ulimit -l)");
  }
  bytes_ = {static_cast<std::byte*>(memory), size_bytes};
}

LockedMemory::~LockedMemory() {
  const pybind11::gil_scoped_release release;
  ::munmap(bytes_.data(), bytes_.size());
}

}  // namespace sluice::python
