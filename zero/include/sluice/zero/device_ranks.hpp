#pragma once
// Communicators for ranks whose device the host does not address, such as a GPU: they take calls on
// host memory and calls on device memory. Units exchange weights and gradients on the device;
// norms, losses and commits are host memory.
//
// Thread-safe: free functions without state. Communicators have the rule of communicator.hpp.

#include <cstddef>
#include <memory>

#include "sluice/offload/device.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "sluice/zero/communicator.hpp"

namespace sluice::zero {

struct StagingOptions {
  offload::Device* device = nullptr;      // its memory; outlives the communicator
  offload::MemoryPool* memory = nullptr;  // host memory that the device copies from; outlives it
  // Taken from `memory`. A call with more bytes runs in parts; the copies of a part run beside the
  // exchange of the part before.
  std::size_t size_bytes = kStagingBytes;

  static constexpr std::size_t kStagingBytes = std::size_t{16} << 20U;
};

// Calls on device memory go through host memory and `host`: they have its order of sums, and so the
// same bits as calls on host memory. A mistake in one rank's call ends that rank's call only: the
// others wait until it makes its next call or aborts. Throws OutOfMemory; InvalidArgument without
// `host`, a device or a pool, and when `size_bytes` has no room for 128 bytes of each rank and of
// one more.
std::unique_ptr<Communicator> make_staged_communicator(std::unique_ptr<Communicator> host,
                                                       const StagingOptions& options);

// Calls on host memory run over `host`, calls on device memory over `device`. Each of the two has
// an order of its own: a call of the one does not wait for those of the other. Both have the same
// ranks.
std::unique_ptr<Communicator> make_paired_communicator(std::unique_ptr<Communicator> host,
                                                       std::unique_ptr<Communicator> device);

}  // namespace sluice::zero
