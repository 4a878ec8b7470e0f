#include "user_loop/loop.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "saved/checkpoint.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/config/lr_schedule.hpp"
#include "update/update_settings.hpp"

namespace sluice::train {

using config::Activations;
using torch::Tensor;

namespace {

// Sets a variable for a scope.
template <typename T>
class Setting {
 public:
  Setting(T& variable, T value) : variable_(variable), before_(std::exchange(variable, value)) {}
  ~Setting() { variable_ = before_; }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  T& variable_;
  const T before_;
};

}  // namespace

// While it lives a unit's parameters are bound to gathered weights.
class Loop::Bound {
 public:
  Bound(Loop& loop, std::size_t unit, UnitOrder::Pass pass)
      : loop_(loop), unit_(unit), any_(!loop.units_[unit].gathers.empty()) {
    // Parameters are ordinary tensors, whatever the caller computes with.
    const c10::InferenceMode ordinary(false);
    loop_.units_.check_unbound(unit_, loop_.torch_dtype_);
    if (!any_) return;
    loop_.order_->enter(pass, loop_.units_[unit_].gathers, loop_.gather_stall_);
    loop_.units_.bind(unit_, loop_.resources_->units, loop_.torch_dtype_);
  }
  ~Bound() {
    if (!any_) return;
    const c10::InferenceMode ordinary(false);
    loop_.units_.unbind(unit_);
    loop_.order_->leave();
  }
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;

 private:
  Loop& loop_;
  const std::size_t unit_;
  const bool any_;
};

Loop::Loop(config::TrainConfig config, const EngineOptions& options)
    : config_(std::move(config)), options_(options), loss_scaler_(config_.fp16) {
  SLUICE_CHECK(config_.world_size == 1, "an Engine trains with one rank");
  SLUICE_CHECK(
      config_.sluice.activations != Activations::offload,
      "\"sluice\": {\"activations\": \"offload\"} is for the built-in model: what a loop of "
      "your own keeps for its backward is LibTorch's, and stays on the device");
}

Loop::~Loop() {
  if (!resources_) return;
  const c10::InferenceMode ordinary(false);
  units_.unbind_all();
}

std::size_t Loop::add_unit(OwnUnit unit) {
  SLUICE_CHECK(!resources_, "unit " + unit.name + " is added after initialize()");
  return units_.add(std::move(unit));
}

const plan::Plan& Loop::plan() const {
  SLUICE_CHECK(resources_ != nullptr, "there is a plan after initialize()");
  return plan_;
}

torch::Device Loop::device() const {
  SLUICE_CHECK(resources_ != nullptr, "the device is known after initialize()");
  return resources_->compute.where;
}

void Loop::check_usable() const {
  SLUICE_CHECK(resources_ != nullptr, "call initialize() first");
  SLUICE_CHECK(doing_ == Doing::nothing,
               "the engine is in use: a unit must not call another unit, nor the engine");
}

// Outputs as the caller may keep them: outside of the unit's graph, and not in its weights.
Tensors Loop::visible(const Tensors& outputs) const {
  Tensors seen;
  for (const Tensor& output : outputs) {
    const Tensor plain = output.detach();
    seen.push_back(units_.is_weight(plain) ? plain.clone() : plain);
  }
  return seen;
}

Tensors Loop::forward(std::size_t unit, const Tensors& inputs) {
  check_usable();
  const OwnUnit& called = units_[unit];
  for (const Tensor& input : inputs)
    SLUICE_CHECK(input.defined(), "unit " + called.name + " is given an undefined tensor");
  const bool wanted = std::any_of(inputs.begin(), inputs.end(),
                                  [](const Tensor& input) { return input.requires_grad(); });
  const bool enabled = torch::GradMode::is_enabled() && !c10::InferenceMode::is_enabled();
  const Setting doing(doing_, Doing::unit);
  if (enabled && (wanted || !called.trains.empty())) return forward_with_gradients(unit, inputs);
  const Bound bound(*this, unit, enabled ? UnitOrder::Pass::training : UnitOrder::Pass::evaluation);
  const torch::NoGradGuard no_grad;
  const Tensors outputs = called.forward(inputs);
  for (const Tensor& output : outputs)
    SLUICE_CHECK(output.defined(), "unit " + called.name + " returned an undefined tensor");
  return visible(outputs);
}

UnitCall Loop::describe(std::size_t unit, const Tensors& inputs) {
  UnitCall call;
  call.loop = weak_from_this();
  call.unit = unit;
  call.generation = generation_;
  call.training_mode = units_[unit].module->is_training();
  call.versions = versions_of(inputs);
  for (const Tensor& input : inputs) {
    call.inputs.push_back(input.detach());
    call.wants_gradient.push_back(input.requires_grad());
  }
  return call;
}

// The unit runs with gradients whether its graph is kept or not: so it is computed in the same way.
Tensors Loop::forward_with_gradients(std::size_t unit, const Tensors& inputs) {
  UnitCall call = describe(unit, inputs);
  const bool keep = keep_->keep(unit);
  if (!keep) call.random_state = random_state(resources_->compute.where);
  Tensors outputs;
  {
    const Bound bound(*this, unit, UnitOrder::Pass::training);
    const OwnUnit& called = units_[unit];
    const offload::MemoryPool& memory = resources_->device->memory();
    const std::uint64_t before = memory.usage().live_bytes;
    UnitGraph graph = run_unit(called.name, called.forward, call.inputs, call.wants_gradient);
    keep_->measured(unit, std::max(memory.usage().live_bytes, before) - before);
    outputs = visible(graph.outputs);
    for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
      if (graph.outputs[i].requires_grad()) call.has_history.push_back(i);
    }
    if (keep) {
      call.inputs.clear();
      call.kept = std::move(graph);
    }
  }
  if (call.has_history.empty()) return outputs;
  return attach(inputs, outputs, std::move(call));
}

void Loop::check_call(const UnitCall& call) const {
  const std::string& name = units_[call.unit].name;
  SLUICE_CHECK(doing_ == Doing::backward, "backward through unit " + name +
                                              ": call Engine::backward(loss), not loss.backward()");
  SLUICE_CHECK(!call.used, "backward was called before on this call of unit " + name +
                               ": a loss has one backward");
  SLUICE_CHECK(call.generation == generation_,
               "the weights of unit " + name +
                   " have changed since it was called: backward comes before the step");
  if (call.kept.outputs.empty()) {
    SLUICE_CHECK(versions_of(call.inputs) == call.versions,
                 "an input of unit " + name +
                     " was changed in place after the call; its backward needs it as it was");
    SLUICE_CHECK(
        units_[call.unit].module->is_training() == call.training_mode,
        "unit " + name + " was set to train() or eval() between its forward and its backward");
  }
}

UnitGraph Loop::graph_of(UnitCall& call) {
  if (!call.kept.outputs.empty()) return std::exchange(call.kept, {});
  const OwnUnit& unit = units_[call.unit];
  const RandomState now = random_state(resources_->compute.where);
  set_random_state(call.random_state);
  const torch::AutoGradMode with_gradients(true);
  UnitGraph graph = run_unit(unit.name, unit.forward, call.inputs, call.wants_gradient);
  set_random_state(now);
  ++recomputed_calls_;
  SLUICE_CHECK(graph.outputs.size() > call.has_history.back(),
               "unit " + unit.name + " returned fewer outputs when it was called again");
  return graph;
}

Tensors Loop::backward_of(UnitCall& call, const Tensors& gradients) {
  check_call(call);
  Tensors results(call.wants_gradient.size());
  const auto defined = [](const Tensor& tensor) { return tensor.defined(); };
  if (std::none_of(gradients.begin(), gradients.end(), defined)) return results;
  ++units_ran_;
  const Setting doing(doing_, Doing::unit_in_backward);
  const OwnUnit& unit = units_[call.unit];
  const Bound bound(*this, call.unit, UnitOrder::Pass::training);
  if (!unit.trains.empty()) {
    gradients_->begin(unit.trains);
    units_.bind_gradients(call.unit, resources_->units, plan_.compute_dtype);
  }
  {
    UnitGraph graph = graph_of(call);
    Tensors roots;
    Tensors root_gradients;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      roots.push_back(graph.outputs[call.has_history[i]]);
      root_gradients.push_back(gradients[i]);
    }
    graph.outputs.clear();
    torch::autograd::backward(roots, root_gradients);
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (call.wants_gradient[i]) results[i] = graph.inputs[i].grad();
    }
  }
  if (!unit.trains.empty()) gradients_->send(unit.trains, unit.trains.size());
  return results;
}

void Loop::backward(const Tensor& loss) {
  check_usable();
  SLUICE_CHECK(loss.defined() && loss.numel() == 1, "backward needs a loss of one element");
  const std::shared_ptr<torch::autograd::Node> node = loss.grad_fn();
  SLUICE_CHECK(node != nullptr,
               "the loss depends on no unit that trains: nothing in its graph has gradients");
  for (const auto& used : used_)
    SLUICE_CHECK(used.lock() != node, "backward was called before on this loss");
  finish_step(false);
  resources_->updater->expect_updates();
  const Tensor value = loss.detach().to(torch::kFloat64).reshape({});
  losses_ = losses_.defined() ? losses_ + value : value;
  used_.erase(
      std::remove_if(used_.begin(), used_.end(), [](const auto& used) { return used.expired(); }),
      used_.end());
  used_.push_back(node);
  try {
    run_backward(loss);
  } catch (...) {
    forget_gradients();
    throw;
  }
  ++backwards_;
}

void Loop::run_backward(const Tensor& loss) {
  const Setting doing(doing_, Doing::backward);
  units_ran_ = 0;
  const double share =
      loss_scaler_.scale() / static_cast<double>(config_.gradient_accumulation_steps);
  // By way of fp64: a scale that the loss's type does not hold is infinite there, an overflow.
  const Tensor gradient = torch::full_like(loss.detach(), share, torch::kFloat64);
  torch::autograd::backward({loss}, {gradient.to(loss.scalar_type())});
  SLUICE_CHECK(units_ran_ > 0, "the loss depends on no unit that trains");
}

void Loop::forget_gradients() {
  gradients_->abandon();
  gradients_->begin_step();
  order_->restart();
  micro_batch_ = 0;
  backwards_ = 0;
  losses_.reset();
}

StepResult Loop::step() {
  check_usable();
  SLUICE_CHECK(backwards_ > 0, "step() without a backward() since the last one");
  order_->end_micro_batch();
  keep_->end_micro_batch(resources_->device->memory().usage().peak_live_bytes);
  backwards_ = 0;
  ++micro_batch_;
  StepResult result = last_;
  result.updated = false;
  result.not_finite.clear();
  if (micro_batch_ < config_.gradient_accumulation_steps) return result;
  update(result);
  last_ = result;
  unfinished_ = true;
  return result;
}

void Loop::update(StepResult& result) {
  // What nobody used has a gradient of zero.
  for (std::size_t l = 0; l < plan_.units.size(); ++l) {
    if (plan_.units[l].frozen) continue;
    if (resources_->units[l]->gradient_state() != zero::GradientState::none) continue;
    gradients_->begin({l});
    gradients_->send({l}, 1);
  }
  gradients_->end_step();
  result.step = ++step_;
  // Read here: a GPU would have nothing to do while the host waits for it before a backward.
  const double losses = std::exchange(losses_, {}).item<double>();
  result.loss = losses / static_cast<double>(config_.gradient_accumulation_steps);
  result.loss_scale = loss_scaler_.scale();
  result.gradient_norm = std::sqrt(gradients_->squared_norm()) / result.loss_scale;
  result.learning_rate = config::learning_rate(config_, updates_ + 1);
  if (!std::isfinite(losses)) {
    result.not_finite = "the loss";
  } else if (!gradients_->not_finite().empty()) {
    result.not_finite = "the gradient of " + gradients_->not_finite();
  }
  result.updated = result.not_finite.empty();
  gradients_->begin_step();
  micro_batch_ = 0;
  if (result.updated) {
    UpdateSettings settings = settings_of_update(config_, ++updates_);
    settings.commits = commits_step(*resources_, step_, false);
    settings.step.gradient_factor =
        gradient_factor(config_.gradient_clipping, result.gradient_norm, result.loss_scale);
    loss_scaler_.updated();
    gradients_->begin_updates(settings);
    ++generation_;
  } else {
    gradients_->drop();
    const std::string line =
        "step " + std::to_string(step_) + ": " + result.not_finite + " is not finite; no update";
    if (const auto stop = loss_scaler_.why_stop(config_.sluice.non_finite))
      throw Error(line + ", and " + stop->reason + "; " + stop->advice);
    log(LogLevel::warn, line + loss_scaler_.overflowed());
  }
}

}  // namespace sluice::train
