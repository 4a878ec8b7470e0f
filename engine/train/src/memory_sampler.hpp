#pragma once
// What the process holds, sampled: resident anonymous and shared memory, and how much of it is
// outside the tiers.

#include <cstdint>
#include <vector>

#include "sluice/offload/memory_pool.hpp"

namespace sluice::train {

// RssAnon + RssShmem of this process, from /proc/self/status.
std::uint64_t resident_bytes();

// Confined to the thread that trains.
class MemorySampler {
 public:
  // `pools` that are no one else's children; they outlive the sampler.
  explicit MemorySampler(std::vector<const offload::MemoryPool*> pools)
      : pools_(std::move(pools)) {}
  void sample();
  std::uint64_t resident_peak_bytes() const { return resident_peak_; }
  std::uint64_t runtime_peak_bytes() const { return runtime_peak_; }

 private:
  std::vector<const offload::MemoryPool*> pools_;
  std::uint64_t resident_peak_ = 0;
  std::uint64_t runtime_peak_ = 0;
};

}  // namespace sluice::train
