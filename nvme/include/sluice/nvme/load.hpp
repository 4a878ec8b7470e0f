#pragma once
// Load: keeps a pattern of transfers going on one file through an IoEngine, and measures bytes,
// time and latency. `sluice nvme bench` and `sluice nvme tune` run loads.

#include <cstdint>
#include <functional>
#include <memory>

#include "sluice/nvme/io_engine.hpp"
#include "sluice/nvme/load_options.hpp"

namespace sluice::nvme {

// Host memory of a Load with these options, in bytes. Throws InvalidArgument as Load does.
// Thread-safe.
std::uint64_t load_memory_bytes(const LoadOptions& options, const IoEngineOptions& engine);

// The result of one run. It counts transfers that ended in the run.
struct LoadResult {
  double seconds = 0;
  double cpu_seconds = 0;  // user and system time of the whole process
  std::uint64_t read_bytes = 0;
  std::uint64_t written_bytes = 0;
  std::uint64_t requests = 0;  // from the engine to the backend
  std::uint64_t bounce_bytes = 0;
  IoLatency latency;  // latency of requests to the backend

  double bytes_per_second() const;
  double cpu_seconds_per_gib() const;
  void add(const LoadResult& other);  // adds a run that did not overlap with this one
};

// Engine and file outlive the load, which owns its memory. Thread-compatible: callers synchronise.
class Load {
 public:
  // Takes memory for an eighth more blocks than the queue holds, at least some MiB, and registers
  // it with the engine. Throws InvalidArgument when the options do not fit the file, which no load
  // grows, or the engine's block; OutOfMemory; IoError.
  Load(IoEngine& engine, const SwapFile& file, LoadOptions options);
  ~Load();
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  // Continues where the last call ended, for one round and at least `seconds`, or until `stop`
  // returns true.
  // Blocks until nothing is in flight. Throws IoError; EIO with the offset when the bytes read
  // differ from the pattern.
  LoadResult run(double seconds, const std::function<bool()>& stop = {});
  // Bytes of memory for transfers, including the pattern.
  std::uint64_t memory_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::nvme
