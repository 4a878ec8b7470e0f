#include "user_loop/loop.hpp"

#include <algorithm>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/threads.hpp"
#include "user_loop/unused_keys.hpp"

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
  Bound(Loop& loop, std::size_t unit, Pass pass) : core_(loop.core_), unit_(unit) {
    core_.enter(unit_, pass);
  }
  ~Bound() { core_.leave(unit_); }
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;

 private:
  LoopCore& core_;
  const std::size_t unit_;
};

Loop::Loop(config::TrainConfig config, const EngineOptions& options, BroughtDevice device)
    : core_(note_unused_keys(std::move(config), LoopKind::engine), options, std::move(device)) {
  SLUICE_CHECK(
      core_.config().sluice.activations != Activations::offload,
      "\"sluice\": {\"activations\": \"offload\"} is for the built-in model: what a loop of "
      "your own keeps for its backward is LibTorch's, and stays on the device");
}

std::size_t Loop::add_unit(OwnUnit unit) {
  SLUICE_CHECK(unit.module != nullptr && unit.forward != nullptr,
               "unit " + unit.name + " has no module or nothing to call");
  for (const auto& param : unit.module->named_parameters())
    SLUICE_CHECK(param.value().numel() > 0,
                 "parameter " + unit.name + "." + param.key() +
                     " is empty: no dimension may be 0. Where an engine before has taken its "
                     "values, that engine's restore_modules() gives them back");
  return core_.add_unit(std::move(unit));
}

void Loop::initialize() {
  core_.initialize();
  for (std::size_t unit = 0; unit < core_.units().size(); ++unit)
    calls_.push_back(std::make_shared<char>());
  forks_ = fork_count();
  std::optional<std::uint64_t> room = core_.plan().budget.device_bytes;
  const auto& gpu = core_.plan().device.gpu;
  // For gaps between the memory's blocks; mapped pages have them between small blocks only.
  if (room && gpu) *room -= *room / (gpu->page_bytes > 0 ? 64U : 8U);
  activations_ = std::make_unique<ActivationChoice>(core_.config().sluice.activations, room,
                                                    core_.units().size());
}

void Loop::check_ready() const {
  SLUICE_CHECK(core_.initialized(), "call initialize() first");
  SLUICE_CHECK(
      forks_ == fork_count(),
      "initialize() was called before a fork: the engine works in the parent process only");
  SLUICE_CHECK(!ended_, "restore_modules() has ended this engine: make another one");
  SLUICE_CHECK(doing_ == Doing::nothing,
               "the engine is in use: one thread at a time calls it, and a unit calls neither "
               "another unit nor the engine");
}

void Loop::check_usable() const {
  check_ready();
  core_.check_whole();
}

// Outputs as the caller may keep them: detached from the unit's graph, and copied where they alias
// its weights.
Tensors Loop::visible(const Tensors& outputs) const {
  Tensors seen;
  for (const Tensor& output : outputs) {
    const Tensor plain = output.detach();
    seen.push_back(core_.units().is_weight(plain) ? plain.clone() : plain);
  }
  return seen;
}

Tensors Loop::forward(std::size_t unit, const Tensors& inputs) {
  check_usable();
  const OwnUnit& called = core_.units()[unit];
  for (const Tensor& input : inputs)
    SLUICE_CHECK(input.defined(), "unit " + called.name + " is given an undefined tensor");
  const bool wanted = std::any_of(inputs.begin(), inputs.end(),
                                  [](const Tensor& input) { return input.requires_grad(); });
  const bool enabled = torch::GradMode::is_enabled() && !c10::InferenceMode::is_enabled();
  const Setting doing(doing_, Doing::unit);
  if (enabled && (wanted || !called.trains.empty())) return forward_with_gradients(unit, inputs);
  const Bound bound(*this, unit, enabled ? Pass::training : Pass::evaluation);
  const torch::NoGradGuard no_grad;
  const UnitWrites writes(core_.units(), unit);
  const Tensors outputs = called.forward(inputs);
  writes.refuse();
  for (const Tensor& output : outputs)
    SLUICE_CHECK(output.defined(), "unit " + called.name + " returned an undefined tensor");
  return visible(outputs);
}

UnitCall Loop::describe(std::size_t unit, const Tensors& inputs) {
  UnitCall call;
  call.owner = weak_from_this();
  call.unit = unit;
  call.weights_version = core_.weights_version();
  call.awaited = calls_[unit];
  call.training_mode = core_.units()[unit].module->is_training();
  for (const Tensor& param : core_.units()[unit].module->parameters())
    call.trained.push_back(param.requires_grad());
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
  if (!save) call.compute_state = compute_state(core_.device());
  Tensors outputs;
  {
    const Bound bound(*this, unit, Pass::training);
    const OwnUnit& called = core_.units()[unit];
    const offload::MemoryPool& memory = core_.device_memory();
    const std::uint64_t before = memory.usage().live_bytes;
    const UnitWrites writes(core_.units(), unit);
    UnitGraph graph = run_unit(called.name, called.forward, call.inputs, call.wants_gradient);
    writes.refuse();
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
  const std::string& name = core_.units()[call.unit].name;
  SLUICE_CHECK(doing_ == Doing::backward, "backward through unit " + name +
                                              ": call Engine::backward(loss), not loss.backward()");
  SLUICE_CHECK(!call.used, "backward was called before on this call of unit " + name +
                               ": a loss has one backward");
  SLUICE_CHECK(call.weights_version == core_.weights_version(),
               "the weights of unit " + name +
                   " have changed since it was called: backward comes before the step");
  if (call.saved.outputs.empty()) {
    SLUICE_CHECK(versions_of(call.inputs) == call.versions,
                 "an input of unit " + name +
                     " was changed in place after the call; its backward needs it as it was");
    SLUICE_CHECK(
        core_.units()[call.unit].module->is_training() == call.training_mode,
        "unit " + name + " was set to train() or eval() between its forward and its backward");
  }
}

// While it lives, the unit's parameters require gradients where they did at a call: a caller may
// freeze some during a forward alone.
class Loop::FrozenAs {
 public:
  FrozenAs(const OwnUnit& unit, const std::vector<bool>& trained)
      : params_(unit.module->parameters()) {
    SLUICE_CHECK(params_.size() == trained.size(),
                 "the parameters of unit " + unit.name + " have changed since it was called");
    for (std::size_t p = 0; p < params_.size(); ++p) {
      before_.push_back(params_[p].requires_grad());
      params_[p].set_requires_grad(trained[p]);
    }
  }
  ~FrozenAs() {
    for (std::size_t p = 0; p < params_.size(); ++p) params_[p].set_requires_grad(before_[p]);
  }
  FrozenAs(const FrozenAs&) = delete;
  FrozenAs& operator=(const FrozenAs&) = delete;

 private:
  std::vector<Tensor> params_;
  std::vector<bool> before_;
};

// While it lives, LibTorch has the state of a call.
class Loop::ComputesAs {
 public:
  explicit ComputesAs(const ComputeState& called) : before_(compute_state(called.device)) {
    set_compute_state(called);
  }
  ~ComputesAs() { set_compute_state(before_); }
  ComputesAs(const ComputesAs&) = delete;
  ComputesAs& operator=(const ComputesAs&) = delete;

 private:
  const ComputeState before_;
};

UnitGraph Loop::graph_of(UnitCall& call) {
  if (!call.saved.outputs.empty()) return std::exchange(call.saved, {});
  const OwnUnit& unit = core_.units()[call.unit];
  const FrozenAs as_called(unit, call.trained);
  UnitGraph graph;
  {
    const ComputesAs state_as_called(call.compute_state);
    const torch::AutoGradMode with_gradients(true);
    const BufferValues buffers(*unit.module);
    try {
      graph = run_unit(unit.name, unit.forward, call.inputs, call.wants_gradient);
    } catch (...) {
      buffers.restore();
      throw;
    }
    buffers.restore();
  }
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
  const Bound bound(*this, call.unit, Pass::training);
  core_.begin_gradients(call.unit);
  const UnitWrites writes(core_.units(), call.unit);
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
  writes.refuse();  // by hooks on gradients
  call.awaited.reset();
  core_.send_gradients(call.unit, awaited_units());
  return results;
}

// Units with calls in a graph that have had no backward.
std::vector<std::size_t> Loop::awaited_units() const {
  std::vector<std::size_t> units;
  if (!core_.updates_in_backward()) return units;  // nothing asks
  for (std::size_t unit = 0; unit < calls_.size(); ++unit) {
    if (calls_[unit].use_count() > 1) units.push_back(unit);
  }
  return units;
}

void Loop::backward(const Tensor& loss) {
  check_usable();
  try {
    run_backward(loss);
  } catch (...) {
    core_.forget_gradients();
    throw;
  }
}

void Loop::run_backward(const Tensor& loss) {
  SLUICE_CHECK(loss.defined() && loss.numel() == 1, "backward needs a loss of one element");
  const NodePtr node = loss.grad_fn();
  SLUICE_CHECK(node != nullptr,
               "the loss depends on no unit that trains: nothing in its graph has gradients");
  for (const auto& used : used_)
    SLUICE_CHECK(used.lock() != node,
                 "backward was called before on this loss, or on another output of the same call: "
                 "one backward takes them all, as of their sum");
  core_.add_loss(loss);
  core_.begin_backward();
  used_.erase(
      std::remove_if(used_.begin(), used_.end(), [](const auto& used) { return used.expired(); }),
      used_.end());
  used_.emplace_back(node);
  const Setting doing(doing_, Doing::backward);
  units_ran_ = 0;
  // Converted by way of fp64: a scale beyond the range of the loss's type becomes infinite there,
  // which is an overflow.
  const Tensor gradient = torch::full_like(loss.detach(), core_.loss_factor(), torch::kFloat64);
  torch::autograd::backward({loss}, {gradient.to(loss.scalar_type())});
  SLUICE_CHECK(units_ran_ > 0, "the loss depends on no unit that trains");
  core_.end_backward();
}

StepResult Loop::step() {
  check_usable();
  SLUICE_CHECK(core_.has_backward() || core_.updates_begun(),
               "step() without a backward() since the last one");
  if (core_.has_backward()) {
    core_.end_micro_batch();
    activations_->end_micro_batch(core_.device_memory().usage().peak_live_bytes);
  }
  if (!core_.updates_begun() &&
      core_.micro_batches() < core_.config().gradient_accumulation_steps) {
    StepResult result = core_.last_step();
    result.step = core_.progress().step;
    result.updated = false;
    result.non_finite.clear();
    return result;
  }
  try {
    return core_.end_step();
  } catch (...) {
    core_.forget_gradients();  // else the next step would add to them
    throw;
  }
}

void Loop::finish() {
  if (!core_.initialized() || ended_) return;
  check_ready();
  core_.finish();
}

void Loop::restore_modules() {
  check_ready();
  core_.finish();
  core_.give_weights_back();
  ended_ = true;
}

Tensor Loop::parameter(const std::string& name) {
  check_ready();
  return core_.parameter(name);
}

void Loop::save_checkpoint(const std::string& directory) {
  check_ready();
  core_.save_checkpoint(directory);
}

std::int64_t Loop::load_checkpoint(const std::string& directory) {
  check_ready();
  return core_.load_checkpoint(core_.read_checkpoint(directory));
}

EngineCounters Loop::counters() const {
  EngineCounters counters = core_.counters();
  counters.recomputed_calls = recomputed_calls_;
  return counters;
}

}  // namespace sluice::train
