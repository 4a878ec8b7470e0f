#pragma once
// The numbers of an IoEngine: plain values that it hands out.

#include <cstdint>

#include "sluice/nvme/latency.hpp"

namespace sluice::nvme {

// Counted where it happens; monotonic over the engine's life.
struct IoCounters {
  std::uint64_t read_bytes = 0;     // bytes of finished reads as asked for
  std::uint64_t written_bytes = 0;  // bytes of finished writes as asked for
  std::uint64_t bounce_bytes = 0;   // bytes copied because address, offset or size were not aligned
  std::uint64_t requests = 0;       // requests handed to the backend, continuations included
  std::uint64_t short_transfers = 0;
  std::uint64_t retries = 0;      // EINTR, EAGAIN; 1000 in a row become an error
  double read_busy_seconds = 0;   // wall time with at least one read / write in flight
  double write_busy_seconds = 0;  // of several drives: of the one that was busy longest

  void add(const IoCounters& other);  // of another drive
};

// Of finished requests to the backend: from their submission until their completion was taken.
struct IoLatency {
  LatencyHistogram reads;
  LatencyHistogram writes;

  void add(const IoLatency& other);
};

}  // namespace sluice::nvme
