#pragma once
// The file on which throughput is measured. Its content is known at every offset, so reads can be
// checked. It is written completely before any measurement: a drive answers reads of blocks that
// were only allocated without touching its media.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "sluice/base/bytes.hpp"
#include "sluice/nvme/file.hpp"
#include "sluice/nvme/io_engine.hpp"

namespace sluice::nvme {

// Name of the file in the measured directory. The file stays there for later measurements.
inline constexpr std::string_view kBenchFileName = "bench.sluice";

// BenchPattern: random bytes that repeat with a period of 257 pages. No block size divides the
// period, so a block from a wrong offset differs. Writes take their bytes directly from the
// pattern: nothing is copied or generated while the clock runs. Owns its memory, whose views it
// must outlive. Thread-safe after construction; whoever writes through memory() synchronises.
class BenchPattern {
 public:
  // 257 pages, about 1 MiB.
  static constexpr std::uint64_t kPeriodBytes = 257 * kPageBytes;

  // `most_bytes`: the longest range for at(). `spread_bytes`: the memory that consecutive ranges
  // walk through before they start over, so that writes need not come from cached memory; rounded
  // up to whole periods. Takes the sum of both, page-aligned. Throws OutOfMemory.
  explicit BenchPattern(std::uint64_t most_bytes, std::uint64_t spread_bytes = kPeriodBytes);

  // The file's content in [offset_bytes, offset_bytes + size_bytes). The address is aligned like
  // the offset, up to a page. Throws InvalidArgument when the range is longer than the pattern has.
  std::span<const std::byte> at(std::uint64_t offset_bytes, std::size_t size_bytes) const;
  // The whole pattern, for register_memory(). Must not be written to.
  std::span<std::byte> memory() const { return {memory_.get(), size_bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::uint64_t spread_bytes_;
  std::size_t size_bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

// Gets the bytes written so far and the bytes to write.
using BenchFileProgress = std::function<void(std::uint64_t, std::uint64_t)>;
// Whether a bench file that was there before stays when the call fails.
enum class OlderFile { stays, goes };

// Opens DIR/bench.sluice with at least `size_bytes` of the pattern. Reuses the file of an earlier
// call when a spot check finds the pattern in it; else writes the whole file and syncs it. Holds
// flock on the file until the file is closed: two programs at once would measure each other.
// Blocks. Throws InvalidArgument when `directory` is no directory, IoError (EWOULDBLOCK when
// another program holds the file; ENOSPC with needed and free bytes, before anything is written),
// and any exception of `progress`. Removes a file that it created when it throws, and with
// OlderFile::goes one that was there too, unless another program holds it.
SwapFile open_bench_file(const std::string& directory, std::uint64_t size_bytes, IoEngine& engine,
                         DirectIo direct, const BenchFileProgress& progress,
                         OlderFile after_failure = OlderFile::stays);

// Whether a program holds the bench file `path`, as open_bench_file() does. False when there is no
// file, and when this process may not open it to find out. Throws IoError.
bool bench_file_in_use(const std::string& path);

// Whether `count` sample pages, spread over the first `size_bytes` of the file, hold the pattern.
// Blocks. Throws IoError.
bool holds_pattern(const SwapFile& file, std::uint64_t size_bytes, IoEngine& engine,
                   unsigned count);

}  // namespace sluice::nvme
