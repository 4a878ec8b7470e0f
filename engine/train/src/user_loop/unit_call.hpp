#pragma once
// UnitCall: what one call of a unit leaves for its backward pass, and the node of LibTorch's graph
// that runs it. The outputs of a call belong to the user's graph; what the unit computed inside is
// a graph of its own, kept or made again.
//
// Confined to the computing thread.

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "sluice/train/engine.hpp"

namespace sluice::train {

// The unit's own graph: leaves that stand for the call's inputs, and what came out.
struct UnitGraph {
  Tensors inputs;
  Tensors outputs;
};

// Of LibTorch's generators, which dropout draws from: the CPU's, and a GPU's.
struct RandomState {
  torch::Tensor cpu;
  torch::Tensor device;  // undefined where that is the CPU
  torch::Device where = torch::kCPU;
};
RandomState random_state(torch::Device device);
void set_random_state(const RandomState& state);

struct UnitCall {
  std::weak_ptr<Loop> loop;  // the user's graph may outlive the engine
  std::size_t unit = 0;
  Tensors inputs;                        // outside of any graph
  std::vector<bool> wants_gradient;      // by input
  std::vector<std::size_t> has_history;  // the outputs that gradients arrive for
  std::vector<std::uint32_t> versions;   // of the inputs, when they were used
  std::int64_t generation = 0;           // of the weights
  bool training_mode = false;            // of the module
  RandomState random_state;              // before the call; when it runs again
  UnitGraph kept;                        // empty: it runs again
  bool used = false;
};

// Runs the unit's function on leaves that stand for `inputs`, with gradients. Throws
// InvalidArgument when it changes an input in place, or returns an undefined tensor.
UnitGraph run_unit(const std::string& name, const UnitFunction& forward, const Tensors& inputs,
                   const std::vector<bool>& wants_gradient);
std::vector<std::uint32_t> versions_of(const Tensors& tensors);

// The outputs as the user sees them, part of the user's graph by `call`.
Tensors attach(const Tensors& user_inputs, const Tensors& outputs, UnitCall call);

}  // namespace sluice::train
