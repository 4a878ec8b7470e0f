#pragma once
// ShardedUnit: one unit's weights and gradients, and which of their bytes exist where. Between
// uses, a unit is only its shard, at its home tier. A gather brings all weights to the device; a
// release drops them. Gradients accumulate on the device, are reduced over the ranks, and go to
// their home, where they wait for the update.
//
// A ShardedUnit is not the optimizer: master and moments belong to the updater. It is not the
// model: it knows elements, not layers. Starting and finishing are two calls; a prefetch is an
// early start.

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>

#include "sluice/base/dtype.hpp"
#include "sluice/base/executor.hpp"
#include "sluice/base/ticket.hpp"
#include "sluice/base/trace.hpp"
#include "sluice/base/worker.hpp"
#include "sluice/offload/device.hpp"
#include "sluice/offload/mover.hpp"
#include "sluice/offload/stall_meter.hpp"
#include "sluice/offload/tiered_bytes.hpp"
#include "sluice/zero/communicator.hpp"
#include "sluice/zero/unit_layout.hpp"

namespace sluice::zero {

// release is legal in every state.
enum class WeightState {
  sharded,    // the shard is at its home; nothing is gathered. Legal: begin_gather, finish_gather.
  gathering,  // a device buffer is allocated and being filled. Legal: finish_gather.
  gathered,   // all weights are on the device. Legal: weights, finish_gather.
};

// finish_reduce, reduce_done and abandon_gradients are legal in every state.
enum class GradientState {
  none,          // no bytes, or the bytes at home have been consumed. Legal: begin_accumulate,
                 // lend_gradients_home.
  accumulating,  // the full flat gradient is on the device. Legal: gradients, gradient_shard,
                 // restore_accumulated, lend_gradients_home, begin_reduce_home.
  reducing,      // the gradients are summed over the ranks, then this rank's shard goes home. The
                 // device buffer still exists. finish_reduce ends this state.
  waiting,       // the shard is at home. Legal: begin_accumulate (adds to it), consume_gradients.
};

// How long compute work was idle for a unit's weights, by reason.
struct GatherStall {
  double update_seconds = 0;  // the optimizer had not made the weights current yet
  double fetch_seconds = 0;   // the weights were being fetched and gathered
};

// How gradients travel to their sum over ranks. One rank sends none.
struct SumFormat {
  std::optional<DType> wire_dtype = {};  // empty: as the gradients
  // Each rank's gradients are divided by it before they are sent, in fp32; then they are rounded
  // once. The sum is not multiplied again. Where a gradient is summed again after a further
  // backward, its earlier sum is multiplied by `divisor` first, so that it is divided once.
  double divisor = 1;

  // Gradients of `dtype` are summed as they are.
  bool is_plain(DType dtype) const { return divisor == 1 && wire_dtype.value_or(dtype) == dtype; }
};

// The services that units use. One for all units of a rank; outlives them.
struct UnitContext {
  // These five are never null, or ShardedUnit throws InvalidArgument.
  offload::Device* device = nullptr;
  offload::Mover* mover = nullptr;
  // Runs the gathers, in order. A gather waits for the unit's update, fetches the shard, and begins
  // all_gather.
  Worker* gather_worker = nullptr;
  // Two communicators over the same ranks. The gather worker's thread uses the first. The computing
  // thread uses the second, and the reduce worker's thread while reductions are in flight.
  Communicator* gather_communicator = nullptr;
  Communicator* communicator = nullptr;
  DType dtype = DType::bf16;                 // type of weights
  std::optional<DType> gradient_dtype = {};  // type of gradients; empty: as the weights
  TraceRow gathers{};            // one entry per gather, from when the weights are current
  offload::StallMeter stalls{};  // measures the waits of the computing thread
  // Runs the reductions of several ranks, in order.
  Worker* reduce_worker = nullptr;  // null: one rank
  TraceRow reductions{};            // one entry per reduction, without its way home
  // Waits for the gathers of several ranks, in order, while the gather worker begins the next ones.
  Worker* arrival_worker = nullptr;  // null: one rank
  // Other than plain only on a device whose memory the host can address.
  SumFormat sums{};
  Executor* executor = nullptr;  // shares conversions of large gradients; null: none
  // The device is the host. With one rank, weights at home in host memory are used there, without
  // copies.
  bool uses_host_homes = false;
  // So are gradients.
  bool sums_in_host_homes = false;
};

// The part of its weights that a unit has at home, where a model has several ranks.
enum class WeightsHome {
  shard,  // this rank's shard: every gather is an all-gather
  whole,  // all weights, on the device: an all-gather makes them current after an update only
};

// Confined to the computing thread. Every call throws InvalidArgument in a state in which it is not
// legal.
class ShardedUnit {
 public:
  // The layout and the context outlive the unit. Throws InvalidArgument for a home that is too
  // small, and for several ranks without an arrival worker and a reduce worker. `weights_home` and
  // `gradients_home` hold this rank's shard of the layout, in the context's data types. With
  // WeightsHome::whole, `weights_home` is device memory for the whole layout. If `gradients_home`
  // is empty, lend_gradients_home() gives one later.
  ShardedUnit(const UnitLayout& layout, const UnitContext& context,
              offload::TieredBytes weights_home, offload::TieredBytes gradients_home,
              WeightsHome kept = WeightsHome::shard);
  ~ShardedUnit();  // waits for transfers in flight
  ShardedUnit(const ShardedUnit&) = delete;
  ShardedUnit& operator=(const ShardedUnit&) = delete;

  const UnitLayout& layout() const { return layout_; }
  WeightState weight_state() const { return weight_state_; }
  GradientState gradient_state() const { return gradient_state_; }
  // This rank's shard of the weights, also with WeightsHome::whole.
  const offload::TieredBytes& weights_home() const { return weights_home_; }
  const offload::TieredBytes& gradients_home() const { return gradients_home_; }
  // Size of the full weights on the device.
  std::size_t full_bytes() const;
  // Size of the full gradient on the device.
  std::size_t full_gradient_bytes() const;

  // Takes the ticket of the update that makes the weights at home current. The next gather waits
  // for this update.
  void set_update(Ticket update);
  // Says that the shard at home changes on every rank, so that whole weights are gathered anew
  // before their next use. set_update() says so too.
  void note_change() { whole_is_current_ = false; }
  // Blocks until the weights at home are current. Throws the update's error. Adds the wait to
  // `stall`.
  void wait_current(GatherStall& stall);

  // Allocates device memory and starts filling it; does not block. With one rank, a home on the
  // device is used in place; so are whole weights, once they are current. Throws OutOfMemory.
  void begin_gather();
  // Blocks until all weights are on the device; calls begin_gather() first if needed. Throws
  // IoError, the update's error and those of the communicator. Adds the wait to `stall`.
  void finish_gather(GatherStall& stall);
  // The full weights on the device; valid until release().
  offload::DeviceSpan weights() const;
  // Drops the gathered copy, if there is one. Throws nothing.
  void release();

  // Allocates the flat gradient buffer of the device now, and keeps it: every begin_accumulate()
  // uses it. For gradients that stay there from one backward to the next. Throws OutOfMemory.
  void keep_gradient_buffer();
  // Allocates a flat gradient buffer on the device. Returns the part (may be empty) that the caller
  // must zero before it calls restore_accumulated(). Throws OutOfMemory.
  offload::DeviceSpan begin_accumulate();
  // Brings gradients that wait at home back to the device, so that new ones are added to them.
  // Blocks, and adds the wait to `stall_seconds`. Does nothing if none wait. After an error they
  // wait at home as before.
  void restore_accumulated(double& stall_seconds);
  // The full flat gradient on the device; valid until finish_reduce().
  offload::DeviceSpan gradients() const;
  // This rank's shard of gradients().
  offload::DeviceSpan gradient_shard() const;
  // Gives this step's gradients a home to wait in, for a unit without one. Legal: none, where homes
  // are used in place, and accumulating, where they are not.
  void lend_gradients_home(offload::TieredBytes home);
  // Sums the gradients over ranks, calls `reduced` (unless it is empty) with this rank's shard of
  // the sum, and moves the shard home. Several ranks do all of it on the reduce worker's thread:
  // the call does not block, and finish_reduce() throws the first error. With one rank only the
  // move goes on after the call.
  using Reduced = std::function<void(offload::DeviceSpan shard)>;
  void begin_reduce_home(Reduced reduced = {});
  // Blocks until the shard is at home, and frees the device buffer. Adds the wait to
  // `stall_seconds`. Does nothing while nothing is reduced. After an error the gradients are lost:
  // every call throws it again, until abandon_gradients().
  void finish_reduce(double& stall_seconds);
  // Whether finish_reduce() would return without blocking.
  bool reduce_done() const;
  // Marks the gradients at home as consumed: used by an update, or not needed.
  void consume_gradients();
  // Waits for transfers in flight, then drops the gradients, wherever they are. Legal in any state;
  // throws nothing.
  void abandon_gradients();

 private:
  DType gradient_dtype() const { return context_.gradient_dtype.value_or(context_.dtype); }
  struct Gather;
  void fetch(Gather& gather);
  Ticket begin_all_gather(const Gather& gather);
  void add_gather(const Gather& gather, std::chrono::steady_clock::time_point begin) const;
  void reduce_scatter(offload::DeviceSpan full, const offload::ComputePoint& made);
  void fetch_accumulated(double& stall_seconds);
  void undo_division(std::span<std::byte> sum) const;
  void check_home(const offload::TieredBytes& home, DType dtype) const;
  bool is_used_in_place() const;
  void record_stall(const offload::StallMeter::Stall& stall, double update_seconds) const;
  void transition(WeightState from, WeightState to);
  void transition(GradientState from, GradientState to);
  void free_accumulated();

  const UnitLayout& layout_;
  const UnitContext& context_;
  const ShardRange range_;
  offload::TieredBytes whole_home_;  // set with WeightsHome::whole; weights_home_ is a part of it
  offload::TieredBytes weights_home_;
  offload::TieredBytes gradients_home_;

  WeightState weight_state_ = WeightState::sharded;
  bool whole_is_current_ = false;  // with WeightsHome::whole: no gather is needed
  offload::Buffer gathered_;
  Ticket gather_;
  // Shared with the gather task, which waits for this ticket.
  std::shared_ptr<Ticket> update_;
  // When the gather task had finished waiting for the update. The task writes it; readers wait for
  // the task's ticket first.
  std::chrono::steady_clock::time_point current_at_;

  GradientState gradient_state_ = GradientState::none;
  enum class Waited { nothing, at_home };
  Waited waited_ = Waited::nothing;  // whether begin_accumulate() found gradients at home
  offload::Buffer accumulated_;
  bool keeps_buffer_ = false;
  offload::Buffer kept_;  // while nothing accumulates into it
  Ticket reduce_;
  std::exception_ptr reduce_error_;  // set: the gradients did not reach their home
};

}  // namespace sluice::zero
