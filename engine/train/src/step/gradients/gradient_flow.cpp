#include "step/gradients/gradient_flow.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <utility>

#include "device/tensor_bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/text.hpp"

namespace sluice::train {

GradientFlow::GradientFlow(RunResources& resources)
    : resources_(resources),
      plan_(resources.plan),
      squared_norms_(resources.plan.layouts.size()),
      non_finite_(resources.plan.layouts.size()),
      states_(resources.plan.layouts.size()),
      sum_checks_(resources.plan.layouts.size()),
      slots_(resources.plan.layouts.size()) {
  if (!plan_.device.host_addressable)
    norms_.emplace(resources.compute, plan_.layouts.size(), plan_.planned.pinned_staging);
}

void GradientFlow::begin_step() {
  std::fill(squared_norms_.begin(), squared_norms_.end(), 0.0);
  std::fill(non_finite_.begin(), non_finite_.end(), std::string());
  immediate_.reset();
  has_updated_ = halted_ = false;
  ranks_agree_on_checks_ = false;
  speculative_.reset();
}

void GradientFlow::update_immediately(const UpdateSettings& settings) {
  immediate_ = settings;
  ranks_agree_on_checks_ = plan_.config.world_size > 1;
}

void GradientFlow::speculate(const UpdateSettings& settings, double loss_scale) {
  loss_scale_ = loss_scale;
  unclipped_factor_ = gradient_factor(/*max_norm=*/0, /*norm=*/0, loss_scale);
  if (clipped_) return;
  speculative_ = settings;
  speculative_->step.gradient_factor = unclipped_factor_;
}

void GradientFlow::begin_buffer(std::size_t unit) {
  wait_for_speculation(unit);
  zero::ShardedUnit& target = *resources_.units[unit];
  // A tied parameter's first contribution may still be on its way home.
  target.finish_reduce(stall_seconds_);
  if (plan_.units[unit].sums_in_host_homes) lend_home(unit);
  const offload::DeviceSpan fresh = target.begin_accumulate();
  if (!fresh.empty())
    tensor_over(fresh, plan_.config.gradient_dtype(), resources_.compute.where).zero_();
  target.restore_accumulated(stall_seconds_);
}

std::vector<std::size_t> GradientFlow::units_of(std::size_t unit) const {
  std::vector<std::size_t> units = {unit};
  for (const auto& from : plan_.layouts[unit].borrowed) units.push_back(from.unit);
  return units;
}

void GradientFlow::begin(const std::vector<std::size_t>& units) {
  while (moves_.size() >= static_cast<std::size_t>(plan_.schedule.gradients_in_flight))
    finish_front();
  for (const std::size_t unit : units) begin_buffer(unit);
}

void GradientFlow::send(const std::vector<std::size_t>& units, std::size_t counted,
                        const std::vector<std::size_t>& complete) {
  for (std::size_t i = 0; i < units.size(); ++i) {
    zero::ShardedUnit& unit = *resources_.units[units[i]];
    lend_home(units[i]);
    unit.begin_reduce_home(i < counted ? check_of_sum(units[i]) : nullptr);
  }
  moves_.push_back({units, counted, complete});
  if (!plan_.config.sluice.overlap) finish_moves();
}

// A unit that is called several times keeps its slot until its last backward. Where all slots are
// kept so, no update frees one.
void GradientFlow::add_slot_if_all_are_kept(std::size_t unit) {
  std::vector<std::string> kept;
  for (std::size_t u = 0; u < slots_.size(); ++u) {
    if (slots_[u]) kept.push_back(plan_.layouts[u].name);
  }
  offload::BufferRing& slots = *resources_.gradient_slots;
  if (kept.size() < slots.count()) return;
  const std::string why =
      "since the gradients of " + join(kept, " and ") + " wait for another backward of their unit";
  try {
    slots.add_tile();
  } catch (const OutOfMemory& error) {
    throw Error("the gradient of unit " + plan_.layouts[unit].name +
                " needs memory beside the slots of the plan, " + why + ": " + error.what() +
                ". Leave optimizer_in_backward out, and the plan has memory for all");
  }
  log(LogLevel::warn, "gradient slots: " + std::to_string(slots.count()) + " in place of " +
                          std::to_string(plan_.rings.gradient_slots) + " of the plan, " + why);
}

// Gives a unit whose gradients use slots a free one as their home, unless it has one; waits for the
// update that frees one.
void GradientFlow::lend_home(std::size_t unit) {
  if (!plan_.units[unit].gradients_use_slots || slots_[unit]) return;
  offload::BufferRing& slots = *resources_.gradient_slots;
  std::optional<offload::TileLease> slot = slots.try_acquire();
  if (!slot) {
    // A gradient that has arrived holds its slot until its update, which finish_moves() begins.
    finish_moves();
    add_slot_if_all_are_kept(unit);
    const auto begin = std::chrono::steady_clock::now();
    slot = slots.acquire();
    const auto end = std::chrono::steady_clock::now();
    update_stall_.update_seconds += std::chrono::duration<double>(end - begin).count();
    resources_.unit_context.stalls.row().add("update", "for a gradient slot", begin, end);
  }
  resources_.units[unit]->lend_gradients_home(
      offload::TieredBytes(offload::Tier::host, slot->bytes()));
  slots_[unit] = std::move(*slot);
}

void GradientFlow::finish_front() {
  // A move that has failed stays the first one: its unit throws the error every time.
  for (const std::size_t unit : moves_.front().units)
    resources_.units[unit]->finish_reduce(stall_seconds_);
  const auto [units, counted, complete] = std::move(moves_.front());
  moves_.pop_front();
  for (std::size_t i = 0; i < counted; ++i) finish_check(units[i]);
  if (immediate_ && !halted_) {
    for (const std::size_t unit : complete) begin_immediate_update(unit, *immediate_);
    return;
  }
  // The step will be skipped or fail, and other units need the slots.
  for (const std::size_t unit : units) {
    const bool waits = resources_.units[unit]->gradient_state() == zero::GradientState::waiting;
    if (slots_[unit] && waits) forget(unit);
  }
  for (const std::size_t unit : complete) begin_speculative_update(unit);
}

void GradientFlow::begin_speculative_update(std::size_t unit) {
  StateUpdater& updater = *resources_.updater;
  if (!speculative_ || !updater.can_speculate(unit) || updater.speculates(unit)) return;
  // A backward may have begun since that adds to it after all.
  if (resources_.units[unit]->gradient_state() != zero::GradientState::waiting) return;
  // The norm only grows. Other ranks may have more of it.
  const double norm = std::sqrt(squared_norm()) / loss_scale_;
  const bool clips = gradient_factor(plan_.config.gradient_clipping, norm, loss_scale_) !=
                     speculative_->step.gradient_factor;
  if (clips || !non_finite().empty()) return speculative_.reset();
  updater.begin_speculative_update(unit, *speculative_);
}

void GradientFlow::forget(std::size_t unit) {
  resources_.units[unit]->consume_gradients();
  slots_[unit] = offload::TileLease();
}

void GradientFlow::begin_arrived_updates() {
  if (!immediate_ && !speculative_) return;
  const auto reduced = [&](std::size_t unit) { return resources_.units[unit]->reduce_done(); };
  const auto arrived = [&](const Move& move) {
    // The end of a reduction begins the norm.
    if (!std::all_of(move.units.begin(), move.units.end(), reduced)) return false;
    for (std::size_t i = 0; i < move.counted; ++i) {
      if (norms_ && !norms_->done(move.units[i])) return false;
    }
    return true;
  };
  while (!moves_.empty() && arrived(moves_.front())) finish_front();
}

void GradientFlow::finish_moves() {
  while (!moves_.empty()) finish_front();
}

void GradientFlow::begin_immediate_update(std::size_t unit, const UpdateSettings& settings) {
  has_updated_ = true;  // even where it fails on the way
  begin_update(unit, settings);
}

void GradientFlow::begin_update(std::size_t unit, const UpdateSettings& settings) {
  zero::ShardedUnit& target = *resources_.units[unit];
  target.consume_gradients();
  StateUpdater::Update update = end_speculation(unit, settings);
  target.set_update(std::move(update.weights));
  states_[unit] = std::move(update.states);
  if (plan_.config.sluice.overlap) return;
  target.wait_current(update_stall_);
  finish_states(unit, update_stall_);
}

// Begins the rest of the unit's update: all of it, unless its speculative update is kept.
StateUpdater::Update GradientFlow::end_speculation(std::size_t unit,
                                                   const UpdateSettings& settings) {
  StateUpdater& updater = *resources_.updater;
  if (updater.speculates(unit)) {
    if (auto kept = updater.keep_speculative_update(unit, settings)) return std::move(*kept);
  }
  return updater.begin_update(unit, settings, std::move(slots_[unit]));
}

// Drops the unit's speculative update; nothing reads its gradients any more. Blocks.
void GradientFlow::wait_for_speculation(std::size_t unit) {
  if (resources_.updater->speculates(unit))
    resources_.updater->drop_speculative_update(unit).wait();
}

void GradientFlow::begin_updates(const UpdateSettings& asked) {
  // The caller may have computed with the weights since backward, so the updates' copies wait for
  // that work. Immediate updates need no such wait: the gradient that arrived was the last use.
  UpdateSettings settings = asked;
  settings.after = resources_.device->mark_compute();
  for (std::size_t u = 0; u < resources_.units.size(); ++u) {
    SLUICE_CHECK(plan_.units[u].frozen ||
                     resources_.units[u]->gradient_state() == zero::GradientState::waiting,
                 "unit " + plan_.layouts[u].name + " has no gradient at home; nothing is updated");
  }
  for (std::size_t u = 0; u < resources_.units.size(); ++u) {
    if (!plan_.units[u].frozen) begin_update(u, settings);
  }
  clipped_ = settings.step.gradient_factor != unclipped_factor_;
}

std::vector<std::size_t> GradientFlow::begin_waiting_updates() {
  std::vector<std::size_t> begun;
  finish_moves();
  if (!immediate_ || halted_) return begun;
  UpdateSettings settings = *immediate_;
  settings.after = resources_.device->mark_compute();  // as in begin_updates()
  for (std::size_t u = 0; u < resources_.units.size(); ++u) {
    if (resources_.units[u]->gradient_state() != zero::GradientState::waiting) continue;
    begin_immediate_update(u, settings);
    begun.push_back(u);
  }
  return begun;
}

void GradientFlow::finish_states(std::size_t unit, zero::GatherStall& stall) {
  resources_.unit_context.stalls.finish(states_[unit], stall.update_seconds, "update",
                                        plan_.layouts[unit].name);
}

void GradientFlow::finish_updates(zero::GatherStall& stall) {
  std::exception_ptr first;
  const auto wait = [&first](const auto& work) {
    const std::exception_ptr error = error_of(work);
    if (!first) first = error;
  };
  for (std::size_t u = 0; u < resources_.units.size(); ++u) {
    zero::ShardedUnit& unit = *resources_.units[u];
    wait([&] {
      if (unit.weight_state() == zero::WeightState::gathering) unit.finish_gather(stall);
      unit.wait_current(stall);
    });
    // After an error too: other tiles of the unit may still be on their way, and the end of the
    // last one marks the unit as failed.
    wait([&] { finish_states(u, stall); });
  }
  if (first) std::rethrow_exception(first);
  resources_.updater->check_updates();
}

void GradientFlow::drop() {
  for (std::size_t u = 0; u < resources_.units.size(); ++u) {
    wait_for_speculation(u);
    if (resources_.units[u]->gradient_state() == zero::GradientState::waiting) forget(u);
  }
}

GradientFlow::~GradientFlow() {
  // A step that did not end, as after an error: the thread that reduces checks sums in this object.
  for (const Move& move : moves_)
    for (const std::size_t unit : move.units) resources_.units[unit]->abandon_gradients();
}

void GradientFlow::abandon() {
  moves_.clear();
  for (std::size_t u = 0; u < resources_.units.size(); ++u) wait_for_speculation(u);
  for (const auto& unit : resources_.units) unit->abandon_gradients();
  for (offload::TileLease& slot : slots_) slot = offload::TileLease();
}

}  // namespace sluice::train
