#pragma once
// MemorySampler: peaks of the process's memory, sampled: resident anonymous and shared memory, the
// part of it outside the tiers, and the bytes that a device's arena loses to gaps.

#include <cstdint>
#include <vector>

#include "sluice/offload/memory_pool.hpp"

namespace sluice::train {

// RssAnon + RssShmem of this process, from /proc/self/status.
std::uint64_t resident_bytes();

// Confined to the thread that trains.
class MemorySampler {
 public:
  // `host_pools`: all pools of this process's memory that are not part of another pool. `device`
  // may be one of them. All outlive the sampler.
  MemorySampler(std::vector<const offload::MemoryPool*> host_pools,
                const offload::MemoryPool& device)
      : pools_(std::move(host_pools)), device_(device) {}
  void sample();
  std::uint64_t resident_peak_bytes() const { return resident_peak_; }
  std::uint64_t runtime_peak_bytes() const { return runtime_peak_; }
  std::uint64_t device_gap_peak_bytes() const { return device_gap_peak_; }

 private:
  const std::vector<const offload::MemoryPool*> pools_;
  const offload::MemoryPool& device_;
  std::uint64_t resident_peak_ = 0;
  std::uint64_t runtime_peak_ = 0;
  std::uint64_t device_gap_peak_ = 0;
};

}  // namespace sluice::train
