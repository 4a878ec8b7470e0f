#pragma once
// Loop: the implementation of Engine. The user's loop decides what is computed and in which order.
// Gathering, gradients, the end of a step, updates and commits are the parts that the built-in
// model trains with.
//
//   forward of a unit    gather (begun early if the order is known) · bind · compute · release
//   backward of a unit   gather · compute again, or use the saved graph · add to the gradients that
//                        the units have from before · gradients go home · release
//   step                 at the last micro-batch: norm over all units · skip or clip · updates
//                        begin (step/step_end.hpp)
//
// loop.cpp has the passes through the units, loop_state.cpp everything else. Engine and its Units
// share the object; a Unit or a graph that outlives the Engine holds it weakly.
//
// Confined to the thread that trains. LibTorch may call backward_of() on its own thread for the
// device, while that thread waits in backward().

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/run_device.hpp"
#include "saved/run_source.hpp"
#include "sluice/config/train_config.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "sluice/plan/machine.hpp"
#include "sluice/train/engine.hpp"
#include "sluice/train/report.hpp"
#include "step/gradient_flow.hpp"
#include "step/progress.hpp"
#include "step/run_resources.hpp"
#include "user_loop/activation_choice.hpp"
#include "user_loop/own_units.hpp"
#include "user_loop/unit_call.hpp"
#include "user_loop/unit_order.hpp"

namespace sluice::train {

// A device that a test brings: what a plan is made from, and the device for a plan.
struct BroughtDevice {
  std::function<plan::MachineFacts(const config::TrainConfig&)> facts = plan::probe_machine;
  std::function<RunDevice(const plan::Plan&)> make = [](const plan::Plan& plan) {
    return make_run_device(plan, nullptr);
  };
};

// Functions with a name of Engine's have its contract.
class Loop final : public UnitBackward, public std::enable_shared_from_this<Loop> {
 public:
  Loop(config::TrainConfig config, const EngineOptions& options, BroughtDevice device = {});
  ~Loop() override;
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  std::size_t add_unit(OwnUnit unit);
  void initialize();
  Tensors forward(std::size_t unit, const Tensors& inputs);
  void backward(const torch::Tensor& loss);
  StepResult step();
  void finish();
  torch::Tensor parameter(const std::string& name);
  void save_checkpoint(const std::string& directory);
  std::int64_t load_checkpoint(const std::string& directory);
  EngineCounters counters() const;
  std::int64_t steps() const { return progress_.step; }
  const plan::Plan& plan() const;
  torch::Device device() const;
  const std::string& name_of(std::size_t unit) const { return units_[unit].name; }

  Tensors backward_of(UnitCall& call, const Tensors& gradients) override;

 private:
  class Bound;
  void check_ready() const;   // initialised, and not in use
  void check_usable() const;  // and the weights are those of one step
  RunSource plan_units();
  void bring_in_states(const RunSource& source);
  void bring_in_frozen(std::size_t layout);
  UnitCall describe(std::size_t unit, const Tensors& inputs);
  Tensors forward_with_gradients(std::size_t unit, const Tensors& inputs);
  Tensors visible(const Tensors& outputs) const;
  void check_call(const UnitCall& call) const;
  UnitGraph graph_of(UnitCall& call);
  void run_backward(const torch::Tensor& loss);
  void forget_gradients();
  void send_zero_gradients();
  void end_step(StepResult& result);
  void finish_step(bool ending);
  void end_step_before_load();
  void commit(bool ending);

  // The step in progress: its micro-batches so far.
  struct Step {
    std::int64_t micro_batch = 0;  // of the step
    std::int64_t backwards = 0;    // since the last step()
    torch::Tensor loss_sum;        // one fp64 element on the device, unscaled
  };
  enum class Doing { nothing, unit, backward, unit_in_backward };

  config::TrainConfig config_;
  const EngineOptions options_;
  const BroughtDevice device_;
  OwnUnits units_;
  plan::Plan plan_;
  torch::Dtype torch_dtype_ = torch::kBFloat16;
  offload::HeldDirectories held_;            // its own swap and checkpoint directories
  std::unique_ptr<RunResources> resources_;  // null before initialize()
  std::unique_ptr<GradientFlow> gradients_;
  std::unique_ptr<UnitOrder> order_;
  std::unique_ptr<ActivationChoice> activations_;
  LinkBytes before_;  // moved by initialize()
  zero::GatherStall gather_stall_;

  Doing doing_ = Doing::nothing;
  std::int64_t weights_version_ = 0;                        // grows when the weights change
  std::int64_t units_ran_ = 0;                              // in this backward
  std::vector<std::weak_ptr<torch::autograd::Node>> used_;  // losses that had their backward
  std::uint64_t recomputed_calls_ = 0;
  Progress progress_;
  Step step_;
  bool updates_running_ = false;  // of the last step; finish_step() waits for them
  StepResult last_;
  // Set while the weights and states are a mix, because load_checkpoint() failed on the way: why.
  std::string failed_load_;
};

}  // namespace sluice::train
