#include "user_loop/loop_core.hpp"

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <variant>

#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "step/step_end.hpp"
#include "update/optimizer_tile.hpp"

namespace sluice::train {

using torch::Tensor;

std::size_t LoopCore::add_unit(OwnUnit unit) {
  SLUICE_CHECK(!resources_, "unit " + unit.name + " is added after initialize()");
  return units_.add(std::move(unit));
}

const plan::Plan& LoopCore::plan() const {
  SLUICE_CHECK(planned_, "there is a plan after initialize()");
  return plan_;
}

torch::Device LoopCore::device() const {
  SLUICE_CHECK(resources_ != nullptr, "the device is known after initialize()");
  return resources_->compute.where;
}

void LoopCore::check_whole() const {
  SLUICE_CHECK(resources_ != nullptr, "call initialize() first");
  if (half_updated_ > 0)
    throw Error("step " + std::to_string(half_updated_) +
                " failed when some units had their updates already (optimizer_in_backward), so "
                "weights and states are a mix of two steps, until a checkpoint is loaded. " +
                remaining_state(plan_, resources_->files.store.get()));
  if (failed_load_.empty()) return;
  throw StorageError(failed_load_,
                     "was loaded in part only, so weights and states are a mix of two steps: load "
                     "another checkpoint before anything else");
}

void LoopCore::check_stream() const {
  const GpuCompute* const gpu = resources_->compute.gpu.get();
  SLUICE_CHECK(gpu == nullptr || gpu->is_current(),
               "the model computes on another CUDA stream than the one that was current when it "
               "was placed: use that stream, or place the model inside of torch.cuda.stream()");
}

void LoopCore::enter(std::size_t unit, Pass pass) {
  const bool records_graph = torch::GradMode::is_enabled();
  // Parameters are ordinary tensors even where the caller uses InferenceMode.
  const c10::InferenceMode ordinary(false);
  units_.check_unbound(unit, torch_dtype_, records_graph);
  const std::vector<std::size_t>& gathers = units_[unit].gathers;
  if (gathers.empty()) return;
  resources_->updater->check_updates();  // the gathers of other units would not tell
  order_->enter(pass, gathers, gather_stall_);
  units_.bind(unit, resources_->units, torch_dtype_);
}

void LoopCore::leave(std::size_t unit) {
  const std::vector<std::size_t>& gathers = units_[unit].gathers;
  if (gathers.empty()) return;
  const c10::InferenceMode ordinary(false);
  // Autocast keeps a 16-bit copy of each weight until it ends. A backward that computes the unit
  // again leaves copies too, though autocast is off by now.
  at::autocast::clear_cache();
  units_.unbind(unit);
  order_->leave(gathers);
}

void LoopCore::begin_backward(const std::vector<GroupValues>& groups, std::optional<bool> is_last) {
  check_takes_backward();
  const bool is_first_call = !has_backward_;
  if (is_first_call) finish_step(false);
  has_backward_ = true;
  resources_->updater->expect_updates();
  if (is_first_call && updates_in_backward())
    choose_updates(groups,
                   is_last.value_or(micro_batches_ + 1 == config_.gradient_accumulation_steps));
  if (!speculates()) return;
  try {
    speculate(update_with(groups));
  } catch (const InvalidArgument&) {  // end_step() throws it, if the values are still these
  }
}

bool LoopCore::updates_in_backward() const {
  return plan().updates_in_backward();
}

bool LoopCore::waits_for_step() const {
  return updates_begun() && !resources_->updater->has_failed();
}

// A backward after the one that has updated the units would add to gradients that are gone.
void LoopCore::check_takes_backward() const {
  SLUICE_CHECK(is_updating_ || !gradients_->updates_begun(),
               "a backward after the last one of step " + std::to_string(progress_.step + 1) +
                   ", which has updated the units (optimizer_in_backward): call step() first. "
                   "Where a step has several backwards, gradient_accumulation_steps is their "
                   "number; a loss that calls backward by itself (GradCache) needs the key left "
                   "out");
}

// As StepRunner::choose_updates(). `ends`: this backward is the last one of the step.
void LoopCore::choose_updates(const std::vector<GroupValues>& groups, bool ends) {
  const UpdateSettings update = update_with(groups);
  if (!ends) {
    SLUICE_CHECK(plan_.rings.gradient_slots == 0,
                 "optimizer_in_backward with gradient_accumulation_steps 1 has no room for "
                 "gradients between backwards: a step of several (no_sync(), or a boundary that "
                 "is set by hand) needs their number there");
    return;
  }
  SLUICE_CHECK(!units_.any_shown(),
               "optimizer_in_backward updates units in the last backward of a step, which is not "
               "inside GatheredParameters: leave its context before");
  gradients_->finish_moves();  // the ranks' sums have the communicator of this thread
  double so_far = loss_sum_.defined() ? loss_sum_.item<double>() : 0;
  if (!gradients_->non_finite().empty()) so_far = std::numeric_limits<double>::quiet_NaN();
  const bool is_known = loss_sum_.defined() || micro_batches_ > 0 || config_.world_size > 1;
  is_updating_ = !is_known || is_finite_on_all_ranks(*resources_, so_far);
  if (is_updating_) gradients_->update_immediately(update);
}

bool LoopCore::speculates() const {
  return std::ranges::any_of(plan().units,
                             [](const plan::UnitPlacement& unit) { return unit.second_states; });
}

void LoopCore::speculate(const UpdateSettings& update) {
  if (!speculates()) return;
  gradients_->speculate(update, progress_.loss_scaler.scale() * config_.divisor_of_sum());
}

// Layouts that another unit accumulates into at this moment have their buffer already.
void LoopCore::begin_gradients(std::size_t unit) {
  std::vector<std::size_t> begun;
  std::vector<std::size_t> without_buffer;
  for (const std::size_t layout : units_[unit].trains) {
    SLUICE_CHECK(!completed_[layout],
                 "another backward of unit " + units_[unit].name +
                     " in a step that has updated it (optimizer_in_backward): a graph has one "
                     "backward, and a unit that is computed again during backward is used once "
                     "(use_reentrant=False allows more). Leave that key out otherwise");
    if (accumulating_[layout]++ > 0) continue;
    begun.push_back(layout);
    const zero::GradientState state = resources_->units[layout]->gradient_state();
    if (state != zero::GradientState::accumulating) without_buffer.push_back(layout);
  }
  if (begun.empty()) return;
  gradients_->begin_arrived_updates();
  if (!without_buffer.empty()) gradients_->begin(without_buffer);
  for (const std::size_t layout : begun)
    units_.bind_gradients(layout, resources_->units, config_.gradient_dtype());
}

void LoopCore::send_gradients(std::size_t unit, const std::vector<std::size_t>& awaited) {
  std::vector<std::size_t> ended;
  for (const std::size_t layout : units_[unit].trains) {
    if (--accumulating_[layout] > 0) continue;
    ended.push_back(layout);
    ++backwards_[layout];
  }
  if (ended.empty()) return;
  for (const std::size_t layout : ended) units_.check_gradients(layout, resources_->units);
  std::erase_if(ended, [this](std::size_t layout) { return stays_on_device(layout); });
  if (ended.empty()) return;
  std::vector<std::size_t> complete;
  std::ranges::copy_if(ended, std::back_inserter(complete), [&](std::size_t layout) {
    return updates_in_backward() ? is_final(layout, awaited) : is_complete(layout);
  });
  for (const std::size_t layout : complete) completed_[layout] = gradients_->updates_begun();
  gradients_->send(ended, ended.size(), complete);
  gradients_->begin_arrived_updates();
}

// Whether this was the last backward that the step is expected to have for the layout. One more
// shows that the step has others than the one before, so none is expected any more.
bool LoopCore::is_complete(std::size_t layout) const {
  return micro_batches_ + 1 == expected_micro_batches_ &&
         backwards_[layout] == std::max(expected_backwards_[layout], 1);
}

// Whether no unit will add to the layout's gradient in this step: none that uses it is `awaited`,
// and all units that have it were there. Activations that are computed again in backward
// (use_reentrant=True) make calls of which no graph tells before.
bool LoopCore::is_final(std::size_t layout, const std::vector<std::size_t>& awaited) const {
  if (backwards_[layout] < plan_.own.backwards[layout]) return false;
  return std::ranges::none_of(awaited, [&](std::size_t unit) {
    return std::ranges::count(units_[unit].trains, layout) > 0;
  });
}

// Whether another backward of the step is expected to add to the layout's gradient on the device.
bool LoopCore::stays_on_device(std::size_t layout) const {
  if (!plan_.units[layout].sums_on_device) return false;
  return micro_batches_ + 1 < expected_micro_batches_ ||
         backwards_[layout] < expected_backwards_[layout];
}

// Gradients that were left on the device for a backward that did not come.
void LoopCore::send_sums() {
  for (std::size_t l = plan_.units.size(); l-- > 0;) {
    if (resources_->units[l]->gradient_state() == zero::GradientState::accumulating)
      gradients_->send({l}, 1);
  }
}

void LoopCore::add_loss(const Tensor& loss) {
  check_whole();
  check_stream();
  check_takes_backward();
  const Tensor value = loss.detach().to(torch::kFloat64).reshape({});
  loss_sum_ = loss_sum_.defined() ? loss_sum_ + value : value;
}

void LoopCore::end_micro_batch() {
  end_backward();
  order_->end_micro_batch();
  has_backward_ = false;
  ++micro_batches_;
  std::swap(expected_backwards_, backwards_);
  std::fill(backwards_.begin(), backwards_.end(), 0);
}

void LoopCore::forget_gradients() {
  // After a backward that has updated the units, the step has its updates, and step() ends it.
  if (gradients_->updates_begun() && !is_updating_) return leave_units();
  drop_step();
}

void LoopCore::leave_units() {
  units_.unbind_passes();
  order_->restart(units_.shown());
  accumulating_.assign(plan_.layouts.size(), 0);
  std::fill(backwards_.begin(), backwards_.end(), 0);
}

void LoopCore::drop_step() {
  if (gradients_->has_updated()) half_updated_ = progress_.step + 1;
  gradients_->abandon();
  leave_units();
  begin_step();
  has_backward_ = is_updating_ = false;
  micro_batches_ = 0;
  loss_sum_ = Tensor();
  ++drops_;
}

void LoopCore::begin_step() {
  gradients_->begin_step();
  is_updating_ = false;
  completed_.assign(plan_.layouts.size(), false);
}

void LoopCore::drop_lost_gradients() {
  log(LogLevel::warn,
      "gradients were lost on their way to memory or to the drive: those of this step so far are "
      "dropped, and the next backward begins the step anew");
  drop_step();
}

void LoopCore::finish_moves() {
  drop_on_error([this] { gradients_->finish_moves(); });
}

double LoopCore::loss_factor() const {
  return progress_.loss_scaler.scale() / static_cast<double>(config_.gradient_accumulation_steps);
}

// A layout that no unit used in this step has a gradient of zero, as in DeepSpeed.
void LoopCore::send_zero_gradients() {
  const bool updated = gradients_->updates_begun();
  for (std::size_t l = 0; l < plan_.units.size(); ++l) {
    if (plan_.units[l].frozen || completed_[l]) continue;
    if (resources_->units[l]->gradient_state() != zero::GradientState::none) continue;
    gradients_->begin({l});
    gradients_->send({l}, 1, updated ? std::vector{l} : std::vector<std::size_t>());
  }
}

// Gradients that backward has left go home, and are updated where backward began that.
void LoopCore::complete_gradients(const UpdateSettings& update) {
  const bool has_slots = plan_.rings.gradient_slots > 0;
  if (has_slots && micro_batches_ == 0) gradients_->update_immediately(update);
  send_sums();
  for (const std::size_t layout : gradients_->begin_waiting_updates()) completed_[layout] = true;
  expected_micro_batches_ = std::exchange(micro_batches_, 0);
  // The slots have not kept the gradients of a step that will be skipped.
  if (!has_slots || gradients_->updates_begun()) send_zero_gradients();
  gradients_->finish_moves();
}

// Updates of this step that backward began have the values that the caller had then.
void LoopCore::check_values(const UpdateSettings& update) const {
  SLUICE_CHECK(!gradients_->updates_begun() || gradients_->updates_as(update),
               "learning rates or other values of parameter groups have changed since the "
               "backward of this step, which has updated the units with the values of before "
               "(optimizer_in_backward): step the scheduler after the optimizer, and change "
               "values between step() and backward");
}

// The next update with the caller's values. Throws InvalidArgument for one that no step can have.
UpdateSettings LoopCore::update_with(const std::vector<GroupValues>& groups) const {
  UpdateSettings update = next_update(*resources_, progress_, /*ending=*/false);
  set_values(groups, update);
  for (const cpu_adam::OptimizerConfig& group : update.groups) cpu_adam::check_values(group);
  return update;
}

StepResult LoopCore::end_step(const std::vector<GroupValues>& groups) {
  check_stream();
  SLUICE_CHECK(!units_.any_in_pass(), "a step ends inside a unit's forward or backward");
  SLUICE_CHECK(!units_.any_shown(), "a step ends while a script sees gathered values");
  units_.check_no_gradients();
  units_.check_trained();
  // Before anything of the step has happened, so the caller can mend its values and go on.
  const UpdateSettings update = update_with(groups);
  check_values(update);
  open_lines();
  // A forward since the last backward may have gathered units ahead, which the updates change.
  order_->pause();
  finish_step(false);  // where no backward has come since the last step
  speculate(update);
  drop_on_error([&] { complete_gradients(update); });
  // Ranks disagree where one of them has dropped its gradients so far.
  const std::string counted = ", micro-batches: " + std::to_string(expected_micro_batches_);
  const double loss_scale = progress_.loss_scaler.scale();
  // Read after all work was issued: a GPU would be idle if the host waited for it before backward.
  const Tensor loss_sum = std::exchange(loss_sum_, {});
  const bool was_told_loss = loss_sum.defined();
  const BackwardResult backward =
      result_of_backward(*resources_, *gradients_, loss_sum.defined() ? loss_sum.item<double>() : 0,
                         loss_scale, counted);
  if (backward.updates_begun && !backward.non_finite.empty()) {
    drop_step();
    gradients_->fail_halted(backward.non_finite);
  }
  begin_step();
  StepResult result;
  result.step = progress_.step;
  result.loss = was_told_loss ? backward.loss : std::numeric_limits<double>::quiet_NaN();
  result.loss_scale = loss_scale;
  result.gradient_norm = backward.gradient_norm;
  // Rates that the caller sets are its own; the configuration's groups follow the schedule.
  result.learning_rate =
      groups.empty()
          ? update.learning_rate
          : std::visit([](const auto& of) { return of.learning_rate; }, update.groups.front());
  result.non_finite = backward.non_finite;
  const StepEnd end = train::end_step(config_, backward, update, *gradients_, progress_);
  if (!end.why_stop.empty()) {
    drop_step();
    throw Error(end.why_stop);
  }
  result.step = progress_.step;
  result.updated = end.updated;
  if (end.updated) ++weights_version_;
  last_ = result;
  updates_running_ = true;
  show_step(result, was_told_loss);
  return result;
}

// Events of steps after the one that this loop begins with, of an earlier process, no longer count.
void LoopCore::open_lines() {
  const config::MonitorsConfig& monitors = config_.monitors;
  if (lines_ || config_.rank != 0) return;
  if (!monitors.tensorboard.enabled && !monitors.csv.enabled) return;
  config::MonitorsConfig without_times = monitors;
  without_times.wall_clock_breakdown = false;  // the caller's work is not timed
  lines_ = std::make_unique<StepLines>(std::string(), without_times, progress_.step, axis_);
}

void LoopCore::show_step(const StepResult& result, bool was_told_loss) {
  if (!lines_) return;
  StepRecord record;
  record.step = result.step;
  record.loss = result.loss;
  record.loss_is_known = was_told_loss;
  record.lr = result.learning_rate;
  record.grad_norm = result.gradient_norm;
  if (config_.fp16.enabled) record.loss_scale = result.loss_scale;
  lines_->append(record);
}

}  // namespace sluice::train
