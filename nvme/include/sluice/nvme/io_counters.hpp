#pragma once
// The numbers of an IoEngine: plain values that it hands out. Thread-compatible: callers
// synchronise.

#include <cstdint>

#include "sluice/nvme/latency.hpp"

namespace sluice::nvme {

// Totals since the construction of the engine.
struct IoCounters {
  std::uint64_t read_bytes = 0;     // requested bytes of the reads that succeeded
  std::uint64_t written_bytes = 0;  // requested bytes of the writes that succeeded
  std::uint64_t bounce_bytes = 0;   // bytes copied because address, offset or size was unaligned
  std::uint64_t requests = 0;       // requests taken by the backend, including continuations
  std::uint64_t short_transfers = 0;
  std::uint64_t retries = 0;  // EINTR, EAGAIN; 1000 in a row become an error
  // Wall time with at least one read, or write, in flight; for several drives, the longest time of
  // any drive.
  double read_busy_seconds = 0;
  double write_busy_seconds = 0;

  void add(const IoCounters& other);  // adds the totals of another drive
};

// Latencies of the requests to the backend, from submission until their completion was reaped.
struct IoLatency {
  LatencyHistogram reads;
  LatencyHistogram writes;

  void add(const IoLatency& other);
};

}  // namespace sluice::nvme
