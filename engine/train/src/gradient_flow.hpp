#pragma once
// GradientFlow: what becomes of gradients in a step: a flat buffer on the device while a unit's
// backward accumulates into it; norm and finite check; on its way home; there, until the update.
// Updates wait for the norm of all units, or begin as each unit's gradients arrive.

#include <torch/torch.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "run_resources.hpp"
#include "sluice/cpu_adam/optimizer.hpp"

namespace sluice::train {

// Confined to the thread that trains.
class GradientFlow {
 public:
  explicit GradientFlow(RunResources& resources);

  void begin_step();
  // Before the first unit's gradients are sent: updates of this step begin as gradients arrive.
  void update_at_once(const UpdateSettings& settings);

  // Buffers for the gradients of a unit and of those that it borrows from, bound to the module.
  // Waits for room on the device.
  void begin_unit(std::size_t unit);
  // The unit's gradients are complete; those of units that it borrows from are not. Throws Error
  // when one is not finite and updates of this step have begun.
  void send(std::size_t unit);
  // Begins the updates of what has arrived. Does not block.
  void begin_arrived_updates();
  // Blocks until all gradients are at home.
  void end_step();

  // Begins the update of every unit, in forward order. Not after update_at_once.
  void begin_updates(const UpdateSettings& settings);
  // Forgets the gradients of a skipped step that still wait.
  void drop();

  double squared_norm() const { return squared_norm_; }
  // Empty, or the first parameter whose gradient is not finite.
  const std::string& not_finite() const { return not_finite_; }
  // Whether the updates of this step have begun.
  bool updates_begun() const { return at_once_.has_value(); }
  // Waiting for gradients to leave; and, without overlap, for updates.
  double stall_seconds() const { return stall_seconds_; }
  double update_stall_seconds() const { return update_stall_.update_seconds; }

 private:
  void begin_buffer(std::size_t unit);
  void bind(std::size_t unit);
  torch::Tensor view_of(const zero::UnitLayout::Borrowed& from) const;
  cpu_adam::GradientSpan span_of(std::span<std::byte> gradients) const;
  void check(std::size_t unit);
  void lend_home(std::size_t unit);
  void forget(std::size_t unit);
  void finish_front();
  void begin_update(std::size_t unit, const UpdateSettings& settings);

  RunResources& resources_;
  const plan::Plan& plan_;
  double stall_seconds_ = 0;
  zero::GatherStall update_stall_;
  double squared_norm_ = 0;
  std::string not_finite_;
  std::optional<UpdateSettings> at_once_;
  // Units whose gradients are on their way home, by stage: the one whose are complete, and those
  // that it borrows from.
  std::deque<std::vector<std::size_t>> leaving_;
  std::vector<offload::TileLease> slots_;  // by unit: of gradients that leave or wait
};

}  // namespace sluice::train
