#pragma once
// Loop: what Engine does. The user's loop decides what is computed and in which order; gathering,
// gradients, updates, commits are the same parts that the built-in model trains with.
//
//   forward of a unit    gather (begun early if the order is known) · bind · compute · release
//   backward of a unit   gather · compute again, or use what was kept · gradients are added to what
//                        the units have from before · go home · release
//   step                 at the last micro-batch: norm over all units · skip or clip · updates
//   begin
//
// Confined to the thread that trains.

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "saved/run_source.hpp"
#include "sluice/config/train_config.hpp"
#include "sluice/train/engine.hpp"
#include "step/gradient_flow.hpp"
#include "step/loss_scaler.hpp"
#include "step/run_resources.hpp"
#include "user_loop/keep_choice.hpp"
#include "user_loop/own_units.hpp"
#include "user_loop/unit_call.hpp"
#include "user_loop/unit_order.hpp"

namespace sluice::train {

// The functions are those of Engine.
class Loop : public std::enable_shared_from_this<Loop> {
 public:
  Loop(config::TrainConfig config, const EngineOptions& options);
  ~Loop();
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
  std::int64_t steps() const { return step_; }
  const plan::Plan& plan() const;
  torch::Device device() const;
  const std::string& name_of(std::size_t unit) const { return units_[unit].name; }

  // Called by a node of LibTorch's graph: the gradients of a call's outputs in, of its inputs out.
  Tensors backward_of(UnitCall& call, const Tensors& gradients);

 private:
  class Bound;
  void check_usable() const;
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
  void update(StepResult& result);
  void finish_step(bool ending);
  models::RunState run_state() const;

  config::TrainConfig config_;
  const EngineOptions options_;
  OwnUnits units_;
  plan::Plan plan_;
  torch::Dtype torch_dtype_ = torch::kBFloat16;
  std::unique_ptr<offload::DirectoryLock> checkpoint_lock_;
  std::unique_ptr<RunResources> resources_;  // null before initialize()
  std::unique_ptr<GradientFlow> gradients_;
  std::unique_ptr<UnitOrder> order_;
  std::unique_ptr<KeepChoice> keep_;
  LinkBytes before_;  // moved by initialize()
  zero::GatherStall gather_stall_;

  enum class Doing { nothing, unit, backward, unit_in_backward } doing_ = Doing::nothing;
  std::int64_t generation_ = 0;   // of the weights: grows whenever they change
  std::int64_t micro_batch_ = 0;  // of the step
  std::int64_t backwards_ = 0;    // since the last step()
  std::int64_t units_ran_ = 0;    // in this backward
  std::vector<std::weak_ptr<torch::autograd::Node>> used_;  // losses that backward was called on
  std::uint64_t recomputed_calls_ = 0;
  torch::Tensor losses_;  // of the step so far, one fp64 element on the device
  std::int64_t step_ = 0;
  std::int64_t updates_ = 0;
  LossScaler loss_scaler_;
  std::int64_t committed_step_ = 0;
  bool unfinished_ = false;  // the last step's updates may still run
  StepResult last_;
};

}  // namespace sluice::train
