#pragma once
// LockedMemory: host memory that stays in RAM (mlock), page-aligned and zeroed. Move-only by way of
// its pointer. Made and destroyed with the GIL, and releases it meanwhile: the kernel takes seconds
// for some GiB. Thread-compatible: callers synchronise.

#include <cstddef>
#include <span>

namespace sluice::python {

class LockedMemory {
 public:
  // Throws InvalidArgument for 0 bytes, and OutOfMemory where the machine or the process's limit
  // (ulimit -l) does not allow it.
  explicit LockedMemory(std::size_t size_bytes);
  ~LockedMemory();
  LockedMemory(const LockedMemory&) = delete;
  LockedMemory& operator=(const LockedMemory&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

}  // namespace sluice::python
