#include "record/memory_sampler.hpp"

#include <algorithm>

#include "sluice/base/file/proc.hpp"

namespace sluice::train {

std::uint64_t resident_bytes() {
  return proc_bytes("/proc/self/status", {"RssAnon", "RssShmem"}).value_or(0);
}

void MemorySampler::sample() {
  const std::uint64_t resident = resident_bytes();
  std::uint64_t tiers = 0;
  for (const offload::MemoryPool* pool : pools_) tiers += pool->usage().held_bytes;
  device_gap_peak_ = std::max(device_gap_peak_, device_.usage().gap_bytes);
  resident_peak_ = std::max(resident_peak_, resident);
  runtime_peak_ = std::max(runtime_peak_, resident > tiers ? resident - tiers : 0);
}

}  // namespace sluice::train
