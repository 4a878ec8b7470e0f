#pragma once
// Loop: the implementation of Engine. The user's loop decides what is computed and in which order.
// Loop calls the units and their backward; LoopCore does the rest.
//
//   forward of a unit    gather (begun early if the order is known) · bind · compute · release
//   backward of a unit   gather · compute again, or use the saved graph · add to the gradients that
//                        the units have from before · gradients go home · release
//
// Engine and its Units share the object; a Unit or a graph that outlives the Engine holds it
// weakly.
//
// Confined to the thread that trains. LibTorch may call backward_of() on its own thread for the
// device, while that thread waits in backward().

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sluice/config/train_config.hpp"
#include "sluice/train/engine.hpp"
#include "user_loop/activation_choice.hpp"
#include "user_loop/loop_core.hpp"
#include "user_loop/unit_call.hpp"

namespace sluice::train {

// Functions with a name of Engine's have its contract.
class Loop final : public UnitBackward, public std::enable_shared_from_this<Loop> {
 public:
  Loop(config::TrainConfig config, const EngineOptions& options, BroughtDevice device = {});

  std::size_t add_unit(OwnUnit unit);
  void initialize();
  Tensors forward(std::size_t unit, const Tensors& inputs);
  void backward(const torch::Tensor& loss);
  StepResult step();
  void finish();
  void restore_modules();
  bool has_unsaved_steps() const { return !ended_ && core_.has_unsaved_steps(); }
  torch::Tensor parameter(const std::string& name);
  void save_checkpoint(const std::string& directory);
  std::int64_t load_checkpoint(const std::string& directory);
  EngineCounters counters() const;
  std::int64_t steps() const { return core_.progress().step; }
  const plan::Plan& plan() const { return core_.plan(); }
  torch::Device device() const { return core_.device(); }
  const std::string& name_of(std::size_t unit) const { return core_.units()[unit].name; }

  Tensors backward_of(UnitCall& call, const Tensors& gradients) override;

 private:
  class Bound;
  class FrozenAs;
  class ComputesAs;
  void check_ready() const;   // initialised in this process, and not in use
  void check_usable() const;  // and the weights are those of one step
  UnitCall describe(std::size_t unit, const Tensors& inputs);
  Tensors forward_with_gradients(std::size_t unit, const Tensors& inputs);
  Tensors visible(const Tensors& outputs) const;
  void check_call(const UnitCall& call) const;
  UnitGraph graph_of(UnitCall& call);
  std::vector<std::size_t> awaited_units() const;
  void run_backward(const torch::Tensor& loss);

  enum class Doing { nothing, unit, backward, unit_in_backward };

  LoopCore core_;
  std::uint64_t forks_ = 0;                        // at initialize()
  std::unique_ptr<ActivationChoice> activations_;  // null before initialize()
  Doing doing_ = Doing::nothing;
  bool ended_ = false;             // the modules have their weights again
  std::int64_t units_ran_ = 0;     // in this backward
  std::vector<WeakNodePtr> used_;  // losses that had their backward
  // By unit: shared with its calls that are in a graph and have had no backward.
  std::vector<std::shared_ptr<char>> calls_;
  std::uint64_t recomputed_calls_ = 0;
};

}  // namespace sluice::train
