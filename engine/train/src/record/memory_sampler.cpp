#include "record/memory_sampler.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>

namespace sluice::train {

std::uint64_t resident_bytes() {
  std::ifstream file("/proc/self/status");
  std::string line;
  std::uint64_t sum_kib = 0;
  while (std::getline(file, line)) {
    unsigned long long kib = 0;
    if (std::sscanf(line.c_str(), "RssAnon: %llu", &kib) == 1 ||
        std::sscanf(line.c_str(), "RssShmem: %llu", &kib) == 1) {
      sum_kib += kib;
    }
  }
  return sum_kib * 1024;
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
