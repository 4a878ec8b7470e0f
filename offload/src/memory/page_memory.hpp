#pragma once
// PageMemory: memory in pages that are mapped at addresses of the caller's choice, so that a block
// is contiguous in addresses and not in memory. MappedSource takes pages from a GPU's driver, tests
// from host memory. Not installed.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace sluice::offload {

// A point in the order of the work that uses the memory. Confined to its caller.
class WorkMark {
 public:
  virtual ~WorkMark() = default;
  // Blocks until all work that was issued before the mark has ended. Throws CudaError.
  virtual void wait() = 0;
};

// Thread-compatible: callers synchronise. Every function may throw CudaError, except the noexcept
// ones, which log.
class PageMemory {
 public:
  using Page = std::uint64_t;  // a handle

  virtual ~PageMemory() = default;
  virtual std::uint64_t page_bytes() const = 0;
  // A page of memory. Throws OutOfMemory where there is no more.
  virtual Page create() = 0;
  virtual void release(Page page) noexcept = 0;
  // Addresses without memory; whole pages.
  virtual std::byte* reserve(std::uint64_t size_bytes) = 0;
  virtual void unreserve(std::byte* begin, std::uint64_t size_bytes) noexcept = 0;
  // Maps pages one after the other at reserved addresses. Maps none of them when it throws.
  virtual void map(std::byte* begin, std::span<const Page> pages) = 0;
  // The work that uses these addresses must have ended.
  virtual void unmap(std::byte* begin, std::uint64_t size_bytes) noexcept = 0;
  // Marks the end of the work that has been issued so far.
  virtual std::unique_ptr<WorkMark> mark_work() = 0;
};

}  // namespace sluice::offload
