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
#include <memory>

#include "sluice/base/dtype.hpp"
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

enum class WeightState {
  sharded,    // the shard is at its home; nothing else is on the device. Legal: begin_gather.
  gathering,  // a device buffer is allocated and being filled. Legal: finish_gather.
  gathered,   // all weights are on the device. Legal: weights, release.
};

enum class GradientState {
  none,          // no bytes, or the bytes at home have been consumed. Legal: begin_accumulate.
  accumulating,  // the full flat gradient is on the device. Legal: gradients, reduce,
                 // begin_reduce_home.
  reducing,      // this rank's shard is on its way home; the device buffer still exists. Legal:
                 // finish_reduce.
  waiting,       // the shard is at home. Legal: begin_accumulate (adds to it), consume_gradients.
};

// How long compute work was idle for a unit's weights, by reason.
struct GatherStall {
  double update_seconds = 0;  // the optimizer had not made the weights current yet
  double fetch_seconds = 0;   // the weights were being fetched and gathered
};

// The services that units use. One for all units of a rank; outlives them.
struct UnitContext {
  offload::Device* device = nullptr;
  offload::Mover* mover = nullptr;
  // Runs the gathers, in order. A gather waits for the unit's update, fetches the shard, and calls
  // all_gather.
  Worker* gather_worker = nullptr;
  // Two communicators over the same ranks: the worker's thread uses the first, the computing thread
  // the second.
  Communicator* gather_communicator = nullptr;
  Communicator* communicator = nullptr;
  DType dtype = DType::bf16;
  TraceRow gathers{};            // one entry per gather, from when the weights are current
  offload::StallMeter stalls{};  // measures the waits of the computing thread
};

// Confined to the computing thread.
class ShardedUnit {
 public:
  // `weights_home` and `gradients_home` hold this rank's shard of the layout, in context.dtype. If
  // `gradients_home` is empty, lend_gradients_home() gives one later.
  ShardedUnit(const UnitLayout& layout, const UnitContext& context,
              offload::TieredBytes weights_home, offload::TieredBytes gradients_home);
  ~ShardedUnit();  // waits for transfers in flight
  ShardedUnit(const ShardedUnit&) = delete;
  ShardedUnit& operator=(const ShardedUnit&) = delete;

  const UnitLayout& layout() const { return layout_; }
  WeightState weight_state() const { return weight_state_; }
  GradientState gradient_state() const { return gradient_state_; }
  const offload::TieredBytes& weights_home() const { return weights_home_; }
  const offload::TieredBytes& gradients_home() const { return gradients_home_; }
  // Size of the full weights, and of the full gradient, on the device.
  std::size_t full_bytes() const;

  // Takes the ticket of the update that makes the weights at home current. The next gather waits
  // for this update.
  void set_update(Ticket update);
  // Blocks until the weights at home are current. Throws the update's error. Adds the wait to
  // `stall`.
  void wait_current(GatherStall& stall);

  // Allocates device memory and starts filling it; does not block. With one rank, a home on the
  // device is used in place. Throws OutOfMemory.
  void begin_gather();
  // Blocks until all weights are on the device; calls begin_gather() first if needed. Throws
  // IoError and the update's error. Adds the wait to `stall`.
  void finish_gather(GatherStall& stall);
  // The full weights on the device; valid until release().
  offload::DeviceSpan weights() const;
  // Drops the gathered copy. Throws nothing.
  void release();

  // Allocates a flat gradient buffer on the device. Returns the part (may be empty) that the caller
  // must zero before it calls restore_accumulated(). Throws OutOfMemory.
  offload::DeviceSpan begin_accumulate();
  // Brings gradients that wait at home back to the device, so that new ones are added to them.
  // Blocks, and adds the wait to `stall_seconds`. Does nothing if none wait.
  void restore_accumulated(double& stall_seconds);
  // The full flat gradient on the device; valid until finish_reduce().
  offload::DeviceSpan gradients() const;
  // This rank's shard of gradients().
  offload::DeviceSpan gradient_shard() const;
  // Gives this step's gradients a home to wait in, for a unit without one. Legal: accumulating.
  void lend_gradients_home(offload::TieredBytes home);
  // Sums the gradients over ranks; blocks.
  void reduce();
  // Starts moving this rank's shard home.
  void begin_reduce_home();
  // Blocks until the shard is at home, and frees the device buffer. Adds the wait to
  // `stall_seconds`.
  void finish_reduce(double& stall_seconds);
  // Whether finish_reduce() would return without blocking.
  bool reduce_done() const;
  // Marks the gradients at home as consumed: used by an update, or not needed.
  void consume_gradients();
  // Waits for transfers in flight, then drops the gradients, wherever they are. Legal in any state;
  // throws nothing.
  void abandon_gradients();

 private:
  void check_home(const offload::TieredBytes& home) const;
  void record_stall(const offload::StallMeter::Stall& stall, double update_seconds) const;
  void transition(WeightState from, WeightState to);
  void transition(GradientState from, GradientState to);

  const UnitLayout& layout_;
  const UnitContext& context_;
  const ShardRange range_;
  offload::TieredBytes weights_home_;
  offload::TieredBytes gradients_home_;

  WeightState weight_state_ = WeightState::sharded;
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
  Ticket reduce_;
};

}  // namespace sluice::zero
