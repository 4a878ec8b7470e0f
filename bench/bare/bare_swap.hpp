#pragma once
// The bound of an optimizer's swap on a drive: blocks are read and, as soon as each is there,
// written back, with `depth` of them on their way. No tensors, no tiles, nothing is touched.

#include <cstddef>
#include <cstdint>
#include <memory>

namespace sluice::bench {

struct SwapRange {
  int fd = -1;                   // open for direct I/O; outlives the loop
  std::uint64_t size_bytes = 0;  // of the file's beginning, a multiple of block_bytes
  std::uint32_t block_bytes = 0;
  unsigned depth = 0;
};

// Thread-compatible: callers synchronise.
class BareSwap {
 public:
  virtual ~BareSwap() = default;
  // Goes on where the last call ended, for at least `seconds`; blocks until nothing is in flight.
  // Returns what was read and written together, in bytes. Throws IoError, also on a short transfer.
  virtual std::uint64_t run(double seconds) = 0;
};

std::unique_ptr<BareSwap> make_bare_uring_swap(const SwapRange& range);
std::unique_ptr<BareSwap> make_bare_libaio_swap(const SwapRange& range);

}  // namespace sluice::bench
