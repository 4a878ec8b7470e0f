#include "user_loop/unit_call.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "sluice/base/error.hpp"

namespace sluice::train {

using torch::Tensor;
using torch::autograd::variable_list;

namespace {

class UnitNode final : public torch::autograd::Node {
 public:
  UnitNode(UnitCall call, torch::autograd::edge_list edges)
      : Node(std::move(edges)), call_(std::move(call)) {}

  variable_list apply(variable_list&& gradients) override {
    const std::shared_ptr<UnitBackward> owner = call_.owner.lock();
    SLUICE_CHECK(owner != nullptr, "backward through a unit of an engine that is gone");
    return owner->backward_of(call_, gradients);
  }
  // LibTorch calls it after the backward that consumes the graph.
  void release_variables() override {
    call_.inputs.clear();
    call_.saved = {};
    call_.awaited.reset();
    call_.used = true;
  }
  std::string name() const override { return "SluiceUnit"; }

 private:
  UnitCall call_;
};

NodePtr make_node(UnitCall call, torch::autograd::edge_list edges) {
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
  return {new UnitNode(std::move(call), std::move(edges)), torch::autograd::deleteNode};
#else
  return c10::make_intrusive<UnitNode>(std::move(call), std::move(edges));
#endif
}

}  // namespace

std::vector<std::uint32_t> versions_of(const Tensors& tensors) {
  std::vector<std::uint32_t> versions;
  // A tensor that was made in InferenceMode has no version counter.
  for (const Tensor& tensor : tensors)
    versions.push_back(tensor.is_inference()
                           ? 0
                           : tensor.unsafeGetTensorImpl()->version_counter().current_version());
  return versions;
}

UnitGraph run_unit(const std::string& name, const UnitFunction& forward, const Tensors& inputs,
                   const std::vector<bool>& wants_gradient) {
  UnitGraph graph;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensor leaf = inputs[i].detach();
    if (wants_gradient[i]) leaf.requires_grad_(true);
    graph.inputs.push_back(std::move(leaf));
  }
  const std::vector<std::uint32_t> before = versions_of(inputs);
  graph.outputs = forward(graph.inputs);
  SLUICE_CHECK(versions_of(inputs) == before,
               "unit " + name + " changes an input in place, which its backward needs as it was");
  for (const Tensor& output : graph.outputs)
    SLUICE_CHECK(output.defined(), "unit " + name + " returned an undefined tensor");
  return graph;
}

namespace {

template <typename Embedding>
bool rescales(const torch::nn::Module& module, const Tensor& weight) {
  const auto* const embedding = module.as<Embedding>();
  return embedding != nullptr && embedding->options.max_norm() && embedding->weight.is_same(weight);
}

// An embedding with `max_norm` rescales rows of its weight in every forward, so nothing is lost.
bool is_rescaled(const torch::nn::Module& module, const Tensor& weight) {
  return std::ranges::any_of(module.modules(), [&](const auto& each) {
    return rescales<torch::nn::EmbeddingImpl>(*each, weight) ||
           rescales<torch::nn::EmbeddingBagImpl>(*each, weight);
  });
}

}  // namespace

UnitWrites::UnitWrites(const OwnUnits& units, std::size_t unit)
    : units_(units), unit_(units[unit]), before_(versions_of(unit_.params)) {}

void UnitWrites::refuse() const {
  const std::vector<std::uint32_t> now = versions_of(unit_.params);
  for (std::size_t p = 0; p < unit_.params.size(); ++p) {
    const Tensor& param = unit_.params[p];
    const ParamPlace& place = unit_.places[p];
    const zero::UnitLayout& layout = units_.layouts()[place.layout];
    const bool is_bound = units_.is_bound(param, place.layout);
    if (is_bound && now[p] == before_[p]) continue;
    if (is_bound && layout.frozen && is_rescaled(*unit_.module, param)) continue;
    throw InvalidArgument("unit " + unit_.name + " changes its parameter " +
                          layout.params[place.param].name +
                          " in a call, and the change would be lost: compute with a changed copy. "
                          "An engine that is used on may have the change");
  }
}

Tensors attach(const Tensors& user_inputs, const Tensors& outputs, UnitCall call) {
  torch::autograd::edge_list edges;
  for (const Tensor& input : user_inputs)
    edges.push_back(torch::autograd::impl::gradient_edge(input));
  const std::vector<std::size_t> with_history = call.has_history;
  const NodePtr node = make_node(std::move(call), std::move(edges));
  for (const std::size_t i : with_history) torch::autograd::set_history(outputs[i], node);
  return outputs;
}

namespace {

Tensor state_of(at::Generator generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}
void set_state(at::Generator generator, const Tensor& state) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

ComputeState compute_state(torch::Device device) {
  ComputeState state{state_of(at::detail::getDefaultCPUGenerator()), {}, device};
  if (!device.is_cpu())
    state.device_random = state_of(at::globalContext().defaultGenerator(device));
  state.autocasts = at::autocast::is_autocast_enabled(device.type());
  state.autocast_dtype = at::autocast::get_autocast_dtype(device.type());
  return state;
}

void set_compute_state(const ComputeState& state) {
  set_state(at::detail::getDefaultCPUGenerator(), state.cpu_random);
  if (state.device_random.defined())
    set_state(at::globalContext().defaultGenerator(state.device), state.device_random);
  at::autocast::set_autocast_enabled(state.device.type(), state.autocasts);
  at::autocast::set_autocast_dtype(state.device.type(), state.autocast_dtype);
}

BufferValues::BufferValues(const torch::nn::Module& module) : buffers_(module.buffers()) {
  const torch::NoGradGuard no_grad;
  for (const Tensor& buffer : buffers_)
    values_.push_back(buffer.defined() ? buffer.clone() : buffer);
}

void BufferValues::restore() const {
  const at::AutoDispatchBelowADInplaceOrView without_versions;
  for (std::size_t i = 0; i < buffers_.size(); ++i)
    if (buffers_[i].defined()) buffers_[i].copy_(values_[i]);
}

}  // namespace sluice::train
