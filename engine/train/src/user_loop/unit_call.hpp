#pragma once
// UnitCall: one call of a unit, as its backward needs it, and the node of LibTorch's graph that
// runs that backward. The outputs of a call belong to the user's graph. The unit's own computation
// is a separate graph, saved or made again.
//
// Confined to the computing thread.

#include <torch/csrc/autograd/function.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/version.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "sluice/train/engine.hpp"
#include "user_loop/own_units.hpp"

namespace sluice::train {

// A node of LibTorch's graph, and a reference that does not keep it: lock() gives the node or null.
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
using NodePtr = std::shared_ptr<torch::autograd::Node>;
using WeakNodePtr = std::weak_ptr<torch::autograd::Node>;
#else
using NodePtr = c10::intrusive_ptr<torch::autograd::Node>;
using WeakNodePtr = c10::weak_intrusive_ptr<torch::autograd::Node>;
#endif

// The unit's own graph: leaves that stand for the call's inputs, and its outputs.
struct UnitGraph {
  Tensors inputs;
  Tensors outputs;
};

// LibTorch's state that a unit's results depend on: its generators, which dropout draws from, the
// CPU's and a GPU's; and the device's autocast.
struct ComputeState {
  torch::Tensor cpu_random;
  torch::Tensor device_random;  // undefined where that is the CPU
  torch::Device device = torch::kCPU;
  bool autocasts = false;
  torch::ScalarType autocast_dtype = torch::kBFloat16;
};
ComputeState compute_state(torch::Device device);
void set_compute_state(const ComputeState& state);

// Values of a module's buffers, which a call may change: statistics of BatchNorm. A second call of
// the unit, in backward, must leave no second change.
class BufferValues {
 public:
  explicit BufferValues(const torch::nn::Module& module);
  // Sets the buffers to the values again. Saved graphs that have a buffer notice nothing.
  void restore() const;

 private:
  Tensors buffers_;
  Tensors values_;
};

struct UnitCall;

// Runs the backward of a unit's call: gradients of the call's outputs in, gradients of its inputs
// out. Loop implements it.
class UnitBackward {
 public:
  virtual ~UnitBackward() = default;
  virtual Tensors backward_of(UnitCall& call, const Tensors& gradients) = 0;
};

struct UnitCall {
  std::weak_ptr<UnitBackward> owner;  // weak: the user's graph may outlive the engine
  std::size_t unit = 0;
  Tensors inputs;                        // detached
  std::vector<bool> wants_gradient;      // by input
  std::vector<std::size_t> has_history;  // indices of the outputs that have a gradient
  std::vector<std::uint32_t> versions;   // of the inputs at the call
  std::int64_t weights_version = 0;      // of the loop, at the call
  bool training_mode = false;            // of the module
  std::vector<bool> trained;             // by parameter of the module: requires a gradient
  ComputeState compute_state;            // before the call; set when it runs again
  UnitGraph saved;                       // empty: the unit runs again
  std::shared_ptr<char> awaited;         // Loop's, of the unit, until the backward
  bool used = false;
};

// Runs the unit's function on leaves that stand for `inputs`, with gradients. Throws
// InvalidArgument when it changes an input in place, or returns an undefined tensor.
UnitGraph run_unit(const std::string& name, const UnitFunction& forward, const Tensors& inputs,
                   const std::vector<bool>& wants_gradient);
// Version counters of the tensors; they grow when a tensor is changed in place.
std::vector<std::uint32_t> versions_of(const Tensors& tensors);

// Finds writes to the parameters of a unit during a call of it. They are lost when the unit's
// weights go. Where a unit computes with the weights at their home, a write may stay.
//
// LibTorch counts the writes to a tensor in place, except those through Tensor::data(). A parameter
// that is given other bytes by set_data() is no view of the unit's weights.
class UnitWrites {
 public:
  // From now on. The unit is bound, and the units outlive this object.
  UnitWrites(const OwnUnits& units, std::size_t unit);
  // Throws InvalidArgument that names a parameter which was written to. The unit is still bound.
  void refuse() const;

 private:
  const OwnUnits& units_;
  const OwnUnit& unit_;
  const std::vector<std::uint32_t> before_;  // version counters, by parameter of the unit
};

// The outputs as the user sees them: part of the user's graph, with `call` as their backward.
Tensors attach(const Tensors& user_inputs, const Tensors& outputs, UnitCall call);

}  // namespace sluice::train
