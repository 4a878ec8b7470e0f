#pragma once
// Load: a pattern of transfers kept going on one file through an IoEngine, and what it cost: what
// `sluice nvme bench` and `sluice nvme tune` measure.

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "sluice/nvme/io_engine.hpp"

namespace sluice::nvme {

//   read, write   one direction
//   mixed         as many bytes read as written, both always in flight
//   swap          an optimizer step's: read p, m and v of a tile, touch every cache line, write
//   them back
enum class LoadPattern { read, write, mixed, swap };
enum class LoadAccess { sequential, random };

// Throws InvalidArgument naming what is expected, and the nearest name.
LoadPattern parse_load_pattern(std::string_view name);
LoadAccess parse_load_access(std::string_view name);
std::string_view name_of(LoadPattern pattern);
std::string_view name_of(LoadAccess access);

struct LoadOptions {
  LoadPattern pattern = LoadPattern::read;
  // random: one block at a time, anywhere; also for mixed. swap is sequential.
  LoadAccess access = LoadAccess::sequential;
  std::uint64_t size_bytes = 0;  // of the file's beginning, a multiple of 4096 and of the block
  // swap: sizes of the tensors in bytes, one state each; their p, m and v lie in three regions,
  // each tensor from a page on. Empty: tiles that fill the file.
  std::vector<std::uint64_t> tensor_bytes;
  bool verify =
      true;  // compare a sample of what is read with the pattern; not for files of someone else
  std::uint64_t seed = 1;  // of random offsets
};

// For LoadOptions::tensor_bytes: `count` sizes from 1 byte to 64 MiB (in a file of less than 1.5
// GiB, to an eighth of what one state has), spread over all orders of magnitude so that three
// states of them nearly fill `size_bytes` of a file, in a random order that is always the same.
// Throws InvalidArgument when so many tensors are too many or too few for that.
std::vector<std::uint64_t> swap_tensor_sizes(std::size_t count, std::uint64_t size_bytes);

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
