#pragma once
// Load: a pattern of transfers kept going on one file through an IoEngine, and what it cost: what
// `sluice nvme bench` and `sluice nvme tune` measure.

#include <cstdint>
#include <functional>
#include <memory>

#include "sluice/nvme/io_engine.hpp"
#include "sluice/nvme/load_options.hpp"

namespace sluice::nvme {

// About what a Load with these takes of host memory. Throws InvalidArgument as Load does.
std::uint64_t load_memory_bytes(const LoadOptions& options, const IoEngineOptions& engine);

// Of one run. Bytes are those of transfers that have ended in it.
struct LoadResult {
  double seconds = 0;
  double cpu_seconds = 0;  // of the whole process, user and system
  std::uint64_t read_bytes = 0;
  std::uint64_t written_bytes = 0;
  std::uint64_t requests = 0;  // of the engine to the backend
  std::uint64_t bounce_bytes = 0;
  IoLatency latency;  // of the requests to the backend

  double bytes_per_second() const;
  double cpu_seconds_per_gib() const;
  void add(const LoadResult& other);  // one after the other
};

// Thread-compatible: callers synchronise. Engine and file outlive it.
class Load {
 public:
  // Takes memory for an eighth more than the queue, at least some megabytes, registers it with the
  // engine. Throws InvalidArgument, OutOfMemory.
  Load(IoEngine& engine, const SwapFile& file, LoadOptions options);
  ~Load();
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  // Goes on where the last call ended, for at least `seconds`; blocks until nothing is in flight.
  // Throws IoError, also (EIO) when what was read is not what the file should hold, with the
  // offset.
  LoadResult run(double seconds, const std::function<bool()>& stop = {});
  // Memory for transfers, the pattern included.
  std::uint64_t memory_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::nvme
