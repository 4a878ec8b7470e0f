#pragma once
// What copies of copy_bench are compared with: the driver's own, with nothing of Sluice.

#include <cstddef>
#include <memory>

namespace sluice::bench {

enum class Direction { in, out, both };  // to the device, to the host, both at once

// Thread-compatible: callers synchronise.
class CopyLimit {
 public:
  virtual ~CopyLimit() = default;
  // Of one copy of all bytes, or one each way. Blocks until they have been moved.
  virtual double seconds(Direction direction) = 0;
};

// memcpy; both directions one after the other.
std::unique_ptr<CopyLimit> make_memcpy_limit(std::size_t size_bytes);
// cudaMemcpyAsync on the first GPU, from and to memory of cudaHostAlloc, a stream for each
// direction. Throws CudaError; InvalidArgument where there is no CUDA runtime, or in a build
// without its headers.
std::unique_ptr<CopyLimit> make_cuda_limit(std::size_t size_bytes);

}  // namespace sluice::bench
