#pragma once
// GradientFlow: what becomes of gradients in a step: a flat buffer on the device while a unit's
// backward accumulates into it; norm and finite check; on its way home; there, until the update.
// Updates wait for the norm of all units, or begin as each unit's gradients arrive.

#include <torch/torch.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "device/device_norms.hpp"
#include "sluice/cpu_adam/optimizer.hpp"
#include "step/run_resources.hpp"
#include "update/update_settings.hpp"

namespace sluice::train {

// Confined to the thread that trains.
class GradientFlow {
 public:
  explicit GradientFlow(RunResources& resources);

  void begin_step();
  // Before the first unit's gradients are sent: updates of this step begin as gradients arrive.
  void update_at_once(const UpdateSettings& settings);

  // Buffers for the gradients of units that one backward adds to, on the device; what they have
  // from before is in them. Waits for room.
  void begin(const std::vector<std::size_t>& units);
  // The buffers leave for home. The first `counted` units' gradients count in the norm, in place of
  // what these units counted before; with updates at once only the first is, and it is complete.
  // Throws Error when one is not finite and updates of this step have begun; on a device that the
  // host does not address that shows later, when they have arrived: what waits for them throws it.
  void send(const std::vector<std::size_t>& units, std::size_t counted);
  // The same for a unit and those that it borrows from: its gradients are complete, theirs are not.
  void begin_unit(std::size_t unit) { begin(units_of(unit)); }
  void send_unit(std::size_t unit) { send(units_of(unit), 1); }
  // More comes to its gradients in this step.
  void keep_unit(std::size_t unit) { send(units_of(unit), 0); }
  // Begins the updates of what has arrived. Does not block.
  void begin_arrived_updates();
  // Blocks until all gradients are at home.
  void end_step();

  // Begins the update of every unit that trains, in forward order. Not after update_at_once.
  void begin_updates(const UpdateSettings& settings);
  // Blocks until every update that was begun has ended; throws the first error. `stall` grows by
  // the wait.
  void finish_updates(zero::GatherStall& stall);
  // Forgets the gradients of a skipped step that still wait.
  void drop();
  // Forgets all gradients, also those that are on the device or on their way: after an error.
  void abandon();

  double squared_norm() const;
  // Empty, or the first parameter whose gradient is not finite.
  const std::string& not_finite() const { return not_finite_; }
  // Whether the updates of this step have begun.
  bool updates_begun() const { return at_once_.has_value(); }
  // Waiting for gradients to leave; and, without overlap, for updates.
  double stall_seconds() const { return stall_seconds_; }
  double update_stall_seconds() const { return update_stall_.update_seconds; }

 private:
  std::vector<std::size_t> units_of(std::size_t unit) const;
  void begin_buffer(std::size_t unit);
  void begin_check(std::size_t unit);
  void finish_check(std::size_t unit);
  void found_not_finite(std::size_t unit);
  std::string first_not_finite(std::size_t unit) const;
  void lend_home(std::size_t unit);
  void forget(std::size_t unit);
  void finish_front();
  void begin_update(std::size_t unit, const UpdateSettings& settings);
  void finish_states(std::size_t unit, zero::GatherStall& stall);

  RunResources& resources_;
  const plan::Plan& plan_;
  double stall_seconds_ = 0;
  zero::GatherStall update_stall_;
  std::vector<double> squared_norms_;  // by unit
  std::vector<Ticket> states_;  // by unit: the rest of its update, once its weights are current
  std::string not_finite_;
  std::optional<UpdateSettings> at_once_;
  // Units whose gradients are on their way home, by stage: the one whose are complete, and those
  // that it borrows from. Of the first `counted` the norm is known then.
  struct Leaving {
    std::vector<std::size_t> units;
    std::size_t counted = 0;
  };
  std::deque<Leaving> leaving_;
  std::optional<DeviceNorms> norms_;       // where the host does not address the device
  std::vector<offload::TileLease> slots_;  // by unit: of gradients that leave or wait
};

}  // namespace sluice::train
