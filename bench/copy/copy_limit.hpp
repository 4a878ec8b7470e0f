#pragma once
// The peer of copy_bench: the driver's own copies, without Sluice.

#include <cstddef>
#include <memory>

namespace sluice::bench {

enum class Direction { in, out, both };  // to the device, to the host, both at once

// Thread-compatible: callers synchronise.
class CopyLimit {
 public:
  virtual ~CopyLimit() = default;
  // Seconds of one copy of all bytes, or of one in each direction. Blocks until the bytes have
  // moved.
  virtual double seconds(Direction direction) = 0;
};

// memcpy; both directions run one after the other.
std::unique_ptr<CopyLimit> make_memcpy_limit(std::size_t size_bytes);
// cudaMemcpyAsync on the first GPU, from and to memory of cudaHostAlloc, with a stream for each
// direction. Throws CudaError, and InvalidArgument without a CUDA runtime or in a build without its
// headers.
std::unique_ptr<CopyLimit> make_cuda_limit(std::size_t size_bytes);

}  // namespace sluice::bench
