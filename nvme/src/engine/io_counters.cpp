#include "sluice/nvme/io_counters.hpp"

#include <algorithm>

namespace sluice::nvme {

void IoLatency::add(const IoLatency& other) {
  reads.add(other.reads);
  writes.add(other.writes);
}

void IoCounters::add(const IoCounters& other) {
  read_bytes += other.read_bytes;
  written_bytes += other.written_bytes;
  bounce_bytes += other.bounce_bytes;
  requests += other.requests;
  short_transfers += other.short_transfers;
  retries += other.retries;
  read_busy_seconds = std::max(read_busy_seconds, other.read_busy_seconds);
  write_busy_seconds = std::max(write_busy_seconds, other.write_busy_seconds);
}

}  // namespace sluice::nvme
