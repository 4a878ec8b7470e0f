#pragma once
// Communicator: the collectives over ranks that sharding needs. Every rank makes the same calls in
// the same order; a call blocks until this rank's part is done. Sums are taken in rank order, so
// results do not depend on timing. All buffers are host memory, or device memory that the host
// addresses (Device::host_view).
//
// One instance per rank. Thread-compatible: one call at a time for each instance.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sluice/base/dtype.hpp"

namespace sluice::zero {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // `full` holds world_size() equal shards. Before the call, this rank's shard is in place; after
  // it, all shards are. Throws InvalidArgument when the size does not divide evenly, Error when
  // another rank has left.
  virtual void all_gather(std::span<std::byte> full) = 0;
  // Element-wise sum of `full` over ranks. This rank's shard of the sum replaces its shard of
  // `full`; the rest of `full` is unspecified. Sums are taken in fp32 and rounded once to `dtype`.
  virtual void reduce_scatter(std::span<std::byte> full, DType dtype) = 0;
  // Sums of a few numbers (norms, losses), the same bits on every rank.
  virtual void all_reduce(std::span<double> values) = 0;
  // Copies `bytes` of rank `root` to every rank.
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;
  // Returns on every rank after all have called it.
  virtual void barrier() = 0;
};

// World size 1: every collective is the identity.
std::unique_ptr<Communicator> make_single_rank();

// `world_size` ranks that are threads of this process; the thread of rank r uses element r. If a
// rank's communicator is destroyed while others wait, their calls throw an Error that names the
// rank.
std::vector<std::unique_ptr<Communicator>> make_thread_communicators(int world_size);

}  // namespace sluice::zero
