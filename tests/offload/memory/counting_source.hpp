#pragma once
// A memory source that counts what is outside, over one source or several, and can be made to fail.

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "sluice/offload/memory_pool.hpp"

namespace sluice::offload::test {

// The counts of the sources that share it. Thread-safe.
struct SourceCounts {
  std::atomic<std::uint64_t> outside_bytes{0};
  std::atomic<std::uint64_t> most_bytes{0};
  std::atomic<std::uint64_t> allocations{0};
  std::atomic<int> failures_left{0};  // the next so many allocations return null

  void add(std::uint64_t size_bytes) {
    const std::uint64_t now = outside_bytes += size_bytes;
    std::uint64_t most = most_bytes.load();
    while (now > most && !most_bytes.compare_exchange_weak(most, now)) {
    }
  }
};

// Thread-safe. The counts outlive it.
class CountingSource final : public MemorySource {
 public:
  explicit CountingSource(SourceCounts& counts,
                          std::unique_ptr<MemorySource> inner = make_host_source())
      : counts_(counts), inner_(std::move(inner)) {}

  void* allocate(std::size_t size_bytes) override {
    ++counts_.allocations;
    if (counts_.failures_left > 0) {
      --counts_.failures_left;
      return nullptr;
    }
    counts_.add(size_bytes);
    return inner_->allocate(size_bytes);
  }
  void free(void* block, std::size_t size_bytes) noexcept override {
    inner_->free(block, size_bytes);
    counts_.outside_bytes -= size_bytes;
  }

 private:
  SourceCounts& counts_;
  const std::unique_ptr<MemorySource> inner_;
};

}  // namespace sluice::offload::test
