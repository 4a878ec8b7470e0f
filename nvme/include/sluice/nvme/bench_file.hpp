#pragma once
// The file that throughput is measured on: what it holds is known at every offset, so that what
// comes back can be checked, and it is written whole before anything is measured, because a drive
// answers reads of blocks that were only allocated out of thin air.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "sluice/nvme/file.hpp"
#include "sluice/nvme/io_engine.hpp"

namespace sluice::nvme {

// In the directory that is measured; kept for the next time until it is cleaned away.
inline constexpr std::string_view kBenchFileName = "bench.sluice";

// Random bytes that repeat after a period which no power of two divides, so a block that is read
// from a wrong place differs. Writes take their bytes straight from the pattern: nothing is copied
// or made while the clock runs. Thread-compatible: const after construction.
class BenchPattern {
 public:
  // 257 pages: about a megabyte.
  static constexpr std::uint64_t kPeriodBytes = 257 * 4096;

  // `most_bytes`: the longest range that at() will be asked for. `spread_bytes`: what at() takes
  // consecutive ranges from before it begins again, for writes that should not always come from the
  // same, cached memory. Takes both, the latter rounded up to whole periods, from a page on.
  explicit BenchPattern(std::uint64_t most_bytes, std::uint64_t spread_bytes = kPeriodBytes);

  // What the file holds in [offset_bytes, offset_bytes + size_bytes). As aligned as the offset, up
  // to a page.
  std::span<const std::byte> at(std::uint64_t offset_bytes, std::size_t size_bytes) const;
  // All of the memory, for registering it.
  std::span<std::byte> memory() const { return {memory_.get(), size_bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::uint64_t spread_bytes_;
  std::size_t size_bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

// Called with bytes done and bytes in all.
using BenchFileProgress = std::function<void(std::uint64_t, std::uint64_t)>;

// Opens DIR/bench.sluice with at least `size_bytes` of the pattern: takes what an earlier call left
// there when a spot check finds the pattern in it, else writes it whole, syncs it and drops nothing
// else. It is locked (flock) until it is closed: two programs at once would measure each other.
// Blocks. Throws IoError (also EWOULDBLOCK when another has it, and ENOSPC with needed and free
// bytes, before anything is written), InvalidArgument when `directory` is none, and what `progress`
// throws; a file that it made is removed then.
SwapFile open_bench_file(const std::string& directory, std::uint64_t size_bytes, IoEngine& engine,
                         DirectIo direct, const BenchFileProgress& progress);

// Whether a sample of `count` pages, spread over the first `size_bytes` of the file, holds the
// pattern.
bool holds_pattern(const SwapFile& file, std::uint64_t size_bytes, IoEngine& engine,
                   unsigned count);

}  // namespace sluice::nvme
