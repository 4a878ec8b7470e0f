#pragma once
// GradientFlow: the way of gradients through a step. A unit's backward accumulates into a flat
// buffer on the device. Then the norm and the finite check are computed, the buffer moves to the
// gradient's home, and the gradient waits there for its update. Updates wait for the norm of all
// units, or each begins when its gradient is at home.

#include <torch/types.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "device/device_norms.hpp"
#include "sluice/cpu_adam/optimizer.hpp"
#include "step/run_resources.hpp"
#include "update/update_settings.hpp"

namespace sluice::train {

// One step: begin_step(), then begin() and send() for each backward, finish_moves(), and the end of
// the step (step_end.hpp). Any call may throw IoError, OutOfMemory or CudaError of the transfers
// that it waits for; after an error, abandon() and begin_step() make the object usable. Confined to
// the thread that trains.
class GradientFlow {
 public:
  // `resources` outlive it.
  explicit GradientFlow(RunResources& resources);
  // Waits for gradients on their way home.
  ~GradientFlow();
  GradientFlow(const GradientFlow&) = delete;
  GradientFlow& operator=(const GradientFlow&) = delete;

  // Called first in every step. Forgets the norms, the finite check and the update settings of the
  // step before.
  void begin_step();
  // From now on a unit's update begins when its gradient is at home. Called before the first unit's
  // gradients are sent.
  void update_immediately(const UpdateSettings& settings);

  // From now on the update of a unit with second states begins when its complete gradient is at
  // home, as if nothing were clipped; begin_updates() keeps it where it has these settings and this
  // factor, or does it again. A gradient that changes after all drops the update: begin(). After an
  // update that was clipped, and once the gradients of this step have a norm that clips, none
  // begins. `loss_scale`: times the divisor of sums over ranks.
  void speculate(const UpdateSettings& settings, double loss_scale);

  // Prepares flat gradient buffers on the device for the units that one backward accumulates into.
  // A buffer starts with what the unit accumulated earlier in this step. Waits for room, and for
  // speculative updates of these units, which are dropped.
  void begin(const std::vector<std::size_t>& units);
  // Starts moving the buffers home. The first `counted` units replace their earlier share of the
  // norm. The gradients of `complete`, which are some of these, are expected to change no more in
  // this step; when updating immediately, they must not. After a counted gradient that is
  // non-finite, no update begins any more, and slots are free for other gradients. The step will be
  // skipped where none has begun. Else the call that waits for the move throws Error, or in a loop
  // of the user's own the caller ends the step with fail_halted().
  void send(const std::vector<std::size_t>& units, std::size_t counted,
            const std::vector<std::size_t>& complete = {});
  // begin() and send() for a unit and the units that it borrows parameters from. The unit's own
  // gradient is final; the borrowed parameters' gradients are not.
  void begin_unit(std::size_t unit) { begin(units_of(unit)); }
  void send_unit(std::size_t unit) { send(units_of(unit), 1, {unit}); }
  // Like send_unit(), but a later pass of this step adds to the unit's gradient. The norm and the
  // finite check wait for that pass.
  void send_partial(std::size_t unit) { send(units_of(unit), 0); }
  // Begins the updates of the gradients that are at home. Does not block.
  void begin_arrived_updates();
  // Blocks until all gradients are at home.
  void finish_moves();

  // Begins the update of every unit that trains, in forward order. Not after update_immediately().
  void begin_updates(const UpdateSettings& settings);
  // After update_immediately(): begins the updates of all gradients that wait at home. Returns
  // their units.
  std::vector<std::size_t> begin_waiting_updates();
  // Blocks until every update that was begun has ended, also after an error; throws the first
  // error. Adds the wait to `stall`.
  void finish_updates(zero::GatherStall& stall);
  // Forgets the gradients of a skipped step that wait for their update.
  void drop();
  // After an error: forgets all gradients, also those on the device and on their way home. Norms
  // stay until begin_step().
  void abandon();

  // Sum over the units' squared norms, of gradients times the loss scale. Complete after
  // finish_moves().
  double squared_norm() const;
  // Empty, or the name of a parameter whose gradient was not finite when its unit was sent last, in
  // the unit that backward comes to first; the unit's name where the gradient is in a file.
  std::string non_finite() const;
  // Whether updates of this step begin as gradients arrive; speculative updates do not count.
  bool updates_begun() const { return immediate_.has_value(); }
  // Whether they have the bits that these settings give.
  bool updates_as(const UpdateSettings& settings) const {
    return immediate_ && immediate_->updates_as(settings);
  }
  // Whether a unit has been updated so.
  bool has_updated() const { return has_updated_; }
  // Throws the Error of a step that has updated units and is `non_finite`: "the loss".
  [[noreturn]] void fail_halted(const std::string& non_finite) const;
  // Seconds that the calling thread waited for gradients to leave the device.
  double stall_seconds() const { return stall_seconds_; }
  // Seconds that it waited for updates: for a gradient slot, and without overlap for all of them.
  double update_stall_seconds() const { return update_stall_.update_seconds; }

 private:
  std::vector<std::size_t> units_of(std::size_t unit) const;
  void begin_buffer(std::size_t unit);
  void finish_check(std::size_t unit);
  // Squared norm and finite check of this rank's shard of the sum over ranks.
  struct SumCheck {
    double squared_norm = 0;  // on a device that the host does not address, in norms_
    std::string non_finite;   // empty: finite
  };
  // Checks the shard when it is reduced, on the thread that reduces.
  zero::ShardedUnit::Reduced check_of_sum(std::size_t unit);
  SumCheck check_on_host(std::size_t unit, offload::DeviceSpan shard);
  SumCheck check_on_device(std::size_t unit, offload::DeviceSpan shard, bool agree);
  void found_non_finite(std::size_t unit, const std::string& name);
  // The parameter of `unit` with the first non-finite value of this rank's shard.
  std::string first_non_finite(std::size_t unit, std::span<std::byte> shard) const;
  // As first_non_finite(), of its gradients at home, on a device too; the name of the unit where
  // they are in a file.
  std::string first_non_finite_at_home(std::size_t unit) const;
  std::uint64_t gradient_shard_bytes(std::size_t unit) const;  // of this rank
  void add_slot_if_all_are_kept(std::size_t unit);
  void lend_home(std::size_t unit);
  void forget(std::size_t unit);
  void finish_front();
  void begin_update(std::size_t unit, const UpdateSettings& settings);
  void begin_immediate_update(std::size_t unit, const UpdateSettings& settings);
  void begin_speculative_update(std::size_t unit);
  StateUpdater::Update end_speculation(std::size_t unit, const UpdateSettings& settings);
  void wait_for_speculation(std::size_t unit);
  void finish_states(std::size_t unit, zero::GatherStall& stall);

  RunResources& resources_;
  const plan::Plan& plan_;
  double stall_seconds_ = 0;
  zero::GatherStall update_stall_;
  std::vector<double> squared_norms_;    // by unit
  std::vector<std::string> non_finite_;  // by unit: empty, or the parameter
  std::vector<Ticket> states_;  // by unit: the part of its update after its weights are current
  std::optional<UpdateSettings> immediate_;  // set: updates begin as gradients arrive
  bool has_updated_ = false;                 // one of them has begun
  bool halted_ = false;                      // no more begin: the step will fail
  // Set: updates begin as gradients arrive, where there are second states.
  std::optional<UpdateSettings> speculative_;
  double loss_scale_ = 1;       // times the divisor of sums over ranks
  float unclipped_factor_ = 1;  // of the gradients of this step
  bool clipped_ = false;        // the last update was
  // The buffers of one backward on their way home: units[0] is the unit whose backward it was, the
  // others are those that it borrows from. The first `counted` enter the norm on arrival. Updates
  // of `complete` may begin then.
  struct Move {
    std::vector<std::size_t> units;
    std::size_t counted = 0;
    std::vector<std::size_t> complete;
  };
  std::deque<Move> moves_;
  std::optional<DeviceNorms> norms_;  // set when the device is not host-addressable
  std::vector<SumCheck> sum_checks_;  // by unit; read after the unit's move has ended
  // Updates of this step were to begin as gradients arrive, so the ranks agree on every check
  // before the update that it decides on.
  bool ranks_agree_on_checks_ = false;
  std::vector<offload::TileLease> slots_;  // by unit: the slot its gradient moves to or waits in
};

}  // namespace sluice::train
