#pragma once
// Communicator: the operations over ranks. begin() and begin_x start an operation and return its
// ticket; the other functions also wait for it. The operations of a
// communicator run one after the other, in the order in which they were begun. Every rank begins
// the same collectives in the same order; send and receive are between two ranks, which begin them
// in the same place of their order.
//
// Where the ranks' sums are Sluice's own (threads, MPI, Python), they are taken in rank order, in
// fp32 (fp64 for doubles), and rounded once. So results depend neither on timing nor on the
// transport. NCCL sums in an order of its own (docs/numerics.md).
//
// Buffers stay valid until the ticket has ended, also after an error. An error names this rank, the
// operation, its label and sizes, and the rank at fault with what it was doing.
//
// One instance per rank and per thread that calls. Thread-compatible: one call at a time for each
// instance. abort(), counters() and observe() are thread-safe.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sluice/base/dtype.hpp"
#include "sluice/base/ticket.hpp"
#include "sluice/offload/device.hpp"
#include "sluice/offload/device_span.hpp"
#include "sluice/zero/abort_reason.hpp"
#include "sluice/zero/call_counters.hpp"
#include "sluice/zero/rank_call.hpp"

namespace sluice::zero {

class Communicator {
 public:
  // Ends the calls that were begun with an error; the other ranks' later calls fail, and name this
  // rank. A call that blocks in another thread has to have returned; abort() ends it.
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // Whether calls may be on memory of a device (DeviceSpan).
  virtual bool on_device() const { return false; }

  // Starts a call. Does not block. The functions begin_x below make such calls; reduce, scatter,
  // gather, send and receive are reached here alone. The ticket's errors: InvalidArgument when the
  // call is impossible or the ranks disagree, Error when a rank has left or does not answer,
  // RankFailure when it has aborted.
  // A HostCall throws InvalidArgument where only device memory works (NCCL alone), except for a
  // barrier. A DeviceCall throws InvalidArgument unless on_device().
  virtual Ticket begin(const HostCall& call);
  virtual Ticket begin(const DeviceCall& call);
  // Makes the call and throws its error. Blocks; the calling thread may do the work itself, which
  // saves two changes of threads. The functions without begin_ end here.
  virtual void perform(const HostCall& call) { begin(call).finish(); }
  // Ends this rank's calls, those in flight and later ones, with an Error that says `why`, and
  // tells the other ranks, whose calls then throw RankFailure. Does not block.
  virtual void abort(const AbortReason& why) = 0;
  virtual CommunicatorCounters counters() const = 0;
  // `observer` is told of this rank's calls from now on.
  virtual void observe(CallObserver observer) = 0;

  // `full` holds world_size() equal shards. Before the call, this rank's shard is in place; after
  // it, all shards are.
  Ticket begin_all_gather(std::span<std::byte> full, std::string label = {});
  // Element-wise sum of `full` over ranks. This rank's shard of the sum replaces its shard of
  // `full`; the rest of `full` is unspecified. Sums are taken in fp32 and rounded once to `dtype`.
  Ticket begin_reduce_scatter(std::span<std::byte> full, DType dtype, std::string label = {});
  // Ends on every rank after all have begun it.
  Ticket begin_barrier(std::string label = {});

  // These operations work on memory of the device, once compute work has reached `after`. Compute
  // work issued after the ticket has ended sees the result. Throw InvalidArgument unless
  // on_device().
  Ticket begin_all_gather(offload::DeviceSpan full, const offload::ComputePoint& after,
                          std::string label = {});
  Ticket begin_reduce_scatter(offload::DeviceSpan full, DType dtype,
                              const offload::ComputePoint& after, std::string label = {});

  // Begin and finish: block until this rank's part is done, and throw its error.
  void all_gather(std::span<std::byte> full, std::string label = {});
  void reduce_scatter(std::span<std::byte> full, DType dtype, std::string label = {});
  // Sums over ranks, the same bits on every rank.
  void all_reduce(std::span<double> values, std::string label = {});
  // Copies `bytes` of rank `root` to every rank.
  void broadcast(std::span<std::byte> bytes, int root, std::string label = {});
  void barrier(std::string label = {});
};

// World size 1: every collective is the identity, and runs in the call that begins it.
std::unique_ptr<Communicator> make_single_rank();

// `world_size` ranks that are threads of this process; the thread of rank r uses element r. If a
// rank's communicator is destroyed while others wait, their calls throw an Error that names the
// rank. Throws InvalidArgument for fewer than one rank.
std::vector<std::unique_ptr<Communicator>> make_thread_communicators(int world_size);

}  // namespace sluice::zero
