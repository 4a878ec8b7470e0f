#pragma once
// The bound of an optimizer's swap on a drive: reads blocks and writes each back as soon as it has
// arrived, with `depth` blocks in flight. It has neither tensors nor tiles, and touches no memory.

#include <cstddef>
#include <cstdint>
#include <memory>

namespace sluice::bench {

struct SwapRange {
  int fd = -1;                   // open for direct I/O; outlives the loop
  std::uint64_t size_bytes = 0;  // used bytes from the file's beginning, a multiple of block_bytes
  std::uint32_t block_bytes = 0;
  unsigned depth = 0;
};

// Thread-compatible: callers synchronise.
class BareSwap {
 public:
  virtual ~BareSwap() = default;
  // Continues where the last call ended, for at least `seconds`. Blocks until nothing is in flight.
  // Returns the bytes read and written. Throws IoError, also on a short transfer.
  virtual std::uint64_t run(double seconds) = 0;
};

std::unique_ptr<BareSwap> make_bare_uring_swap(const SwapRange& range);
std::unique_ptr<BareSwap> make_bare_libaio_swap(const SwapRange& range);

}  // namespace sluice::bench
