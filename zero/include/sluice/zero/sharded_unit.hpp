#pragma once
// ShardedUnit: one unit's weights and gradients, and which of their bytes exist where. Between uses
// a unit is only its shard, at its home tier; gathering brings all of its weights to the device,
// releasing drops them; gradients are accumulated on the device, reduced over the ranks, and sent
// to their home, where they wait for the update.
//
// It is neither the optimizer (master and moments are the updater's) nor the model (it knows
// elements, not layers). Starting and finishing are two calls; a prefetch is an early start.

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
  sharded,    // the shard at its home, nothing on the device (but a home on the device). Legal:
              // begin_gather.
  gathering,  // a device buffer is taken and being filled. Legal: finish_gather.
  gathered,   // all weights are on the device. Legal: weights, release.
};

enum class GradientState {
  none,          // no bytes, or what is at home has been used up. Legal: begin_accumulate.
  accumulating,  // the full flat gradient is on the device. Legal: gradients, reduce,
                 // begin_reduce_home.
  reducing,      // this rank's shard is on its way home; the device buffer still exists. Legal:
                 // finish_reduce.
  waiting,       // the shard is at home. Legal: begin_accumulate (adds to it), consume_gradients.
};

// Why the computing thread waited for a unit.
struct GatherStall {
  double update_seconds = 0;  // the optimizer had not made the weights current yet
  double fetch_seconds = 0;   // they were on their way
};

// Moves what units need. One for all units of a rank; outlives them.
struct UnitContext {
  offload::Device* device = nullptr;
  offload::Mover* mover = nullptr;
  // Gathers run on this worker, in order: it waits for the unit's update, fetches the shard, and
  // calls all_gather.
  Worker* gather_worker = nullptr;
  // Two communicators over the same ranks: gathers on the worker's thread, the rest on the
  // computing thread.
  Communicator* gather_communicator = nullptr;
  Communicator* communicator = nullptr;
  DType dtype = DType::bf16;
  TraceRow gathers{};            // per unit, from when its weights are current
  offload::StallMeter stalls{};  // of the computing thread
};

// Confined to the computing thread, except that update_done may be set by any thread before the
// next begin_gather.
class ShardedUnit {
 public:
  // `weights_home` and `gradients_home` hold this rank's shard of the layout in context.dtype; an
  // empty `gradients_home` is lent later.
  ShardedUnit(const UnitLayout& layout, const UnitContext& context,
              offload::TieredBytes weights_home, offload::TieredBytes gradients_home);
  ~ShardedUnit();  // waits for what is in flight
  ShardedUnit(const ShardedUnit&) = delete;
  ShardedUnit& operator=(const ShardedUnit&) = delete;

  const UnitLayout& layout() const { return layout_; }
  WeightState weight_state() const { return weight_state_; }
  GradientState gradient_state() const { return gradient_state_; }
  const offload::TieredBytes& weights_home() const { return weights_home_; }
  const offload::TieredBytes& gradients_home() const { return gradients_home_; }
  // Bytes of the full weights, and of the full gradient, on the device.
  std::size_t full_bytes() const;

  // The update that makes the weights at home current; the next gather waits for it. Takes the
  // ticket.
  void set_update(Ticket update);
  // Blocks until the weights at home are current; throws what the update threw. `stall` grows by
  // the wait.
  void wait_current(GatherStall& stall);

  // Takes device memory and starts filling it; does not block. A home on the device, with one rank,
  // is used where it lies. Throws OutOfMemory.
  void begin_gather();
  // Blocks until all weights are on the device; begins first if nobody has. Throws IoError and what
  // the update threw. `stall` grows by the time it blocked.
  void finish_gather(GatherStall& stall);
  // The full weights on the device; valid until release.
  offload::DeviceSpan weights() const;
  // Drops the gathered copy. Throws nothing.
  void release();

  // Takes a flat gradient buffer on the device; returns the part that the caller must zero (may be
  // empty), before it calls restore_accumulated. Throws OutOfMemory.
  offload::DeviceSpan begin_accumulate();
  // Brings back what was accumulated before and waited at home, so that it is added to; blocks,
  // and `stall_seconds` grows by that. Nothing otherwise.
  void restore_accumulated(double& stall_seconds);
  // The full flat gradient on the device; valid until finish_reduce.
  offload::DeviceSpan gradients() const;
  // This rank's part of it.
  offload::DeviceSpan gradient_shard() const;
  // Where this step's gradients wait, for a unit without a home of its own. Legal: accumulating.
  void lend_gradients_home(offload::TieredBytes home);
  // Sums over ranks (blocks for that), then starts sending this rank's shard home.
  void reduce();
  void begin_reduce_home();
  // Blocks until the shard is at home and the device buffer is free.
  void finish_reduce(double& stall_seconds);
  // Whether finish_reduce would not block.
  bool reduce_done() const;
  // The gradients at home have been used (or are not wanted any more).
  void consume_gradients();
  // Drops the gradients, wherever they are, after what is on its way has ended. Legal in any state;
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
  // Shared with the gather task, which waits for it.
  std::shared_ptr<Ticket> update_;
  // When the gather task had waited for the update; written by the task, read after its ticket has
  // finished.
  std::chrono::steady_clock::time_point current_at_;

  GradientState gradient_state_ = GradientState::none;
  enum class Waited { nothing, at_home };
  Waited waited_ = Waited::nothing;  // what begin_accumulate found at home
  offload::Buffer accumulated_;
  Ticket reduce_;
};

}  // namespace sluice::zero
