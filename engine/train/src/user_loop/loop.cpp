#include "user_loop/loop.hpp"

#include <algorithm>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/config/lr_schedule.hpp"
#include "step/step_end.hpp"

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

// A unit's parameters are bound to gathered weights while this object lives.
class Loop::Bound {
 public:
  Bound(Loop& loop, std::size_t unit, UnitOrder::Pass pass)
      : loop_(loop), unit_(unit), any_(!loop.units_[unit].gathers.empty()) {
    // Parameters are ordinary tensors even where the caller uses InferenceMode.
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

Loop::Loop(config::TrainConfig config, const EngineOptions& options, BroughtDevice device)
    : config_(std::move(config)), options_(options), device_(std::move(device)) {
  progress_.loss_scaler = LossScaler(config_.fp16);
  SLUICE_CHECK(config_.world_size == 1, "an Engine trains with one rank");
  SLUICE_CHECK(
      config_.sluice.activations != Activations::offload,
      "\"sluice\": {\"activations\": \"offload\"} is for the built-in model: what a loop of "
      "your own keeps for its backward is LibTorch's, and stays on the device");
  SLUICE_CHECK(!config_.monitors.tensorboard.enabled && !config_.monitors.csv.enabled,
               "\"tensorboard\" and \"csv_monitor\" are written by sluice train; in a loop of your "
               "own set \"enabled\" to false and write what step() returns");
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

void Loop::check_ready() const {
  SLUICE_CHECK(resources_ != nullptr, "call initialize() first");
  SLUICE_CHECK(doing_ == Doing::nothing,
               "the engine is in use: a unit must not call another unit, nor the engine");
}

void Loop::check_usable() const {
  check_ready();
  if (failed_load_.empty()) return;
  throw StorageError(failed_load_,
                     "was loaded in part only, so weights and states are a mix of two steps: load "
                     "another checkpoint before anything else");
}

// Outputs as the caller may keep them: detached from the unit's graph, and copied where they alias
// its weights.
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
  call.owner = weak_from_this();
  call.unit = unit;
  call.weights_version = weights_version_;
  call.training_mode = units_[unit].module->is_training();
  call.versions = versions_of(inputs);
  for (const Tensor& input : inputs) {
    call.inputs.push_back(input.detach());
    call.wants_gradient.push_back(input.requires_grad());
  }
  return call;
}

// The unit runs with gradients whether its graph is saved or not, so both compute the same way.
Tensors Loop::forward_with_gradients(std::size_t unit, const Tensors& inputs) {
  UnitCall call = describe(unit, inputs);
  const bool save = activations_->saves(unit);
  if (!save) call.random_state = random_state(resources_->compute.where);
  Tensors outputs;
  {
    const Bound bound(*this, unit, UnitOrder::Pass::training);
    const OwnUnit& called = units_[unit];
    const offload::MemoryPool& memory = resources_->device->memory();
    const std::uint64_t before = memory.usage().live_bytes;
    UnitGraph graph = run_unit(called.name, called.forward, call.inputs, call.wants_gradient);
    activations_->measured(unit, std::max(memory.usage().live_bytes, before) - before);
    outputs = visible(graph.outputs);
    for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
      if (graph.outputs[i].requires_grad()) call.has_history.push_back(i);
    }
    if (save) {
      call.inputs.clear();
      call.saved = std::move(graph);
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
  SLUICE_CHECK(call.weights_version == weights_version_,
               "the weights of unit " + name +
                   " have changed since it was called: backward comes before the step");
  if (call.saved.outputs.empty()) {
    SLUICE_CHECK(versions_of(call.inputs) == call.versions,
                 "an input of unit " + name +
                     " was changed in place after the call; its backward needs it as it was");
    SLUICE_CHECK(
        units_[call.unit].module->is_training() == call.training_mode,
        "unit " + name + " was set to train() or eval() between its forward and its backward");
  }
}

UnitGraph Loop::graph_of(UnitCall& call) {
  if (!call.saved.outputs.empty()) return std::exchange(call.saved, {});
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
  const std::shared_ptr<torch::autograd::Node>& node = loss.grad_fn();
  SLUICE_CHECK(node != nullptr,
               "the loss depends on no unit that trains: nothing in its graph has gradients");
  for (const auto& used : used_)
    SLUICE_CHECK(used.lock() != node, "backward was called before on this loss");
  finish_step(false);
  resources_->updater->expect_updates();
  const Tensor value = loss.detach().to(torch::kFloat64).reshape({});
  step_.loss_sum = step_.loss_sum.defined() ? step_.loss_sum + value : value;
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
  ++step_.backwards;
}

void Loop::run_backward(const Tensor& loss) {
  const Setting doing(doing_, Doing::backward);
  units_ran_ = 0;
  const double share =
      progress_.loss_scaler.scale() / static_cast<double>(config_.gradient_accumulation_steps);
  // Converted by way of fp64: a scale beyond the range of the loss's type becomes infinite there,
  // which is an overflow.
  const Tensor gradient = torch::full_like(loss.detach(), share, torch::kFloat64);
  torch::autograd::backward({loss}, {gradient.to(loss.scalar_type())});
  SLUICE_CHECK(units_ran_ > 0, "the loss depends on no unit that trains");
}

void Loop::forget_gradients() {
  gradients_->abandon();
  gradients_->begin_step();
  order_->restart();
  step_ = {};
}

StepResult Loop::step() {
  check_usable();
  SLUICE_CHECK(step_.backwards > 0, "step() without a backward() since the last one");
  order_->end_micro_batch();
  activations_->end_micro_batch(resources_->device->memory().usage().peak_live_bytes);
  step_.backwards = 0;
  ++step_.micro_batch;
  StepResult result = last_;
  result.updated = false;
  result.not_finite.clear();
  if (step_.micro_batch < config_.gradient_accumulation_steps) return result;
  end_step(result);
  last_ = result;
  updates_running_ = true;
  return result;
}

// A layout that no unit used in this step has a gradient of zero, as in DeepSpeed.
void Loop::send_zero_gradients() {
  for (std::size_t l = 0; l < plan_.units.size(); ++l) {
    if (plan_.units[l].frozen) continue;
    if (resources_->units[l]->gradient_state() != zero::GradientState::none) continue;
    gradients_->begin({l});
    gradients_->send({l}, 1);
  }
}

void Loop::end_step(StepResult& result) {
  send_zero_gradients();
  gradients_->finish_moves();
  const double loss_scale = progress_.loss_scaler.scale();
  // Read after all work was issued: a GPU would be idle if the host waited for it before backward.
  const double loss_sum = std::exchange(step_, {}).loss_sum.item<double>();
  const BackwardResult backward =
      result_of_backward(*resources_, *gradients_, loss_sum, loss_scale);
  gradients_->begin_step();
  const UpdateSettings update = next_update(*resources_, progress_, /*ending=*/false);
  result.loss = backward.loss;
  result.loss_scale = loss_scale;
  result.gradient_norm = backward.gradient_norm;
  result.learning_rate = config::learning_rate(config_, progress_.updates + 1);
  result.not_finite = backward.non_finite;
  const StepEnd end = train::end_step(config_, backward, update, *gradients_, progress_);
  if (!end.why_stop.empty()) throw Error(end.why_stop);
  result.step = progress_.step;
  result.updated = end.updated;
  if (end.updated) ++weights_version_;
}

}  // namespace sluice::train
