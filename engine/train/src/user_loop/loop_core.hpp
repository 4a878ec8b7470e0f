#pragma once
// LoopCore: training with a loop of the user's own, below the graph of the computation. It plans
// the user's units, gathers and binds their weights, takes their gradients, ends steps, commits,
// and writes checkpoints. Two callers decide what is computed and when: Loop calls the units
// itself; behind HookedLoop, hooks on a model enter and leave them.
//
//   forward of a unit    enter · compute · leave
//   backward of a unit   enter · begin_gradients · compute · send_gradients · leave
//   micro-batch          begin_backward() before its backward, end_micro_batch() after it
//   step                 end_step(): norm over all units · skip or clip · updates begin
//
// loop_core.cpp has the passes and steps, loop_core_state.cpp the start, commits and checkpoints,
// param_access.cpp reading and writing of single parameters.
//
// Confined to the thread that trains. LibTorch may run a backward on its own thread for the device,
// while that thread waits.

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/run_device.hpp"
#include "record/step_lines.hpp"
#include "saved/checkpoint_writer.hpp"
#include "sluice/config/train_config.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "sluice/plan/machine.hpp"
#include "sluice/train/engine.hpp"
#include "sluice/train/hooked_loop.hpp"
#include "sluice/train/report.hpp"
#include "sluice/train/run_source.hpp"
#include "step/gradients/gradient_flow.hpp"
#include "step/progress.hpp"
#include "step/run_resources.hpp"
#include "user_loop/own_units.hpp"
#include "user_loop/unit_order.hpp"

namespace sluice::train {

// Where a loop gets the facts for its plan, and the device of the plan. Default: the machine's.
struct BroughtDevice {
  std::function<plan::MachineFacts(const config::TrainConfig&)> facts = plan::probe_machine;
  std::function<RunDevice(const plan::Plan&)> make = [](const plan::Plan& plan) {
    return make_run_device(plan, nullptr);
  };
};

// Functions with a name of HookedLoop's have its contract, else Engine's.
class LoopCore {
 public:
  // `ranks`: the other ranks of the configuration's world; every one makes the same calls.
  LoopCore(config::TrainConfig config, const EngineOptions& options, BroughtDevice device,
           RankLinks ranks = {});
  ~LoopCore();
  LoopCore(const LoopCore&) = delete;
  LoopCore& operator=(const LoopCore&) = delete;

  std::size_t add_unit(OwnUnit unit);
  void initialize();
  void preview();

  bool initialized() const { return resources_ != nullptr; }
  // Throws StorageError while the weights and states are a mix of two steps (load_checkpoint()).
  void check_whole() const;
  // Throws InvalidArgument when the thread computes on another stream of the GPU than at
  // initialize(): its work would not be ordered with the copies.
  void check_stream() const;
  const config::TrainConfig& config() const { return config_; }
  const plan::Plan& plan() const;
  torch::Device device() const;
  torch::Dtype dtype() const { return torch_dtype_; }
  OwnUnits& units() { return units_; }
  const OwnUnits& units() const { return units_; }
  const offload::MemoryPool& device_memory() const { return resources_->device->memory(); }
  const Progress& progress() const { return progress_; }
  // Grows when the weights change.
  std::int64_t weights_version() const { return weights_version_; }

  // Passes and steps.
  void enter(std::size_t unit, Pass pass);
  void leave(std::size_t unit);
  void show(std::size_t unit);
  void hide(std::size_t unit);
  void begin_backward(const std::vector<GroupValues>& groups = {},
                      std::optional<bool> is_last = {});
  void begin_gradients(std::size_t unit);
  void send_gradients(std::size_t unit, const std::vector<std::size_t>& awaited = {});
  void add_loss(const torch::Tensor& loss);
  // After a backward that had no error, before another one may begin; end_micro_batch() does it
  // too.
  void end_backward() { is_updating_ = false; }
  void end_micro_batch();
  void forget_gradients();
  StepResult end_step(const std::vector<GroupValues>& groups = {});
  // Whether updates may begin in the last backward of a step, to be kept or dropped by end_step().
  bool speculates() const;
  // Whether they begin there for good ("optimizer_in_backward").
  bool updates_in_backward() const;
  // Whether a backward has begun that end_micro_batch() has not counted.
  bool has_backward() const { return has_backward_; }
  // Whether the step in progress has updates that are there for good.
  bool updates_begun() const { return gradients_ && gradients_->updates_begun(); }
  // Whether end_step() is next, then: no update has failed.
  bool waits_for_step() const;
  // Whether weights and states are a mix of two steps, since a step has failed after some updates.
  bool is_half_updated() const { return half_updated_ > 0; }
  // Micro-batches whose gradients the step in progress has.
  std::int64_t micro_batches() const { return micro_batches_; }
  std::int64_t drops() const { return drops_; }

  // The factor that backward multiplies a loss by: the loss scale / micro-batches of a step.
  double loss_factor() const;
  // Result of the last step that ended.
  const StepResult& last_step() const { return last_; }

  void finish();
  // Whether steps were trained that no commit and no checkpoint has.
  bool has_unsaved_steps() const;
  torch::Tensor parameter(const std::string& name);
  std::vector<torch::Tensor> parameters(const std::vector<std::string>& names);
  // Makes copies of all weights the parameters' own. Nothing is trained afterwards.
  void give_weights_back();
  // param_access.cpp. `moment` empty: the master.
  using NamedTensors = std::map<std::string, torch::Tensor>;
  void set_parameters(const NamedTensors& values);
  std::vector<std::string> moment_names() const;
  torch::Tensor state(const std::string& name, std::optional<std::size_t> moment);
  void set_states(const NamedTensors& values, std::optional<std::size_t> moment);
  torch::Tensor gradient(const std::string& name);
  void set_gradient(const std::string& name, const torch::Tensor& values);
  void save_checkpoint(const std::string& directory);
  // Changes nothing. Throws StorageError where the state cannot be that of these units.
  RunSource read_checkpoint(const std::string& directory);
  std::int64_t load_checkpoint(const RunSource& source);  // of read_checkpoint()
  const std::string& loaded_from() const { return loaded_from_; }
  // As after a load_checkpoint() that failed on the way.
  void load_failed(const std::string& directory);
  EngineCounters counters() const;

 private:
  void set_frozen(std::size_t layout, const NamedTensors& values);
  plan::Placement placement() const;
  plan::Plan make_plan();
  zero::ShardRange shard_of(std::size_t layout) const;
  void store_shard(std::size_t layout, offload::DeviceSpan full);
  RunSource plan_units();
  void bring_in_states(const RunSource& source);
  void bring_in_frozen(std::size_t layout);
  UpdateSettings update_with(const std::vector<GroupValues>& groups) const;
  void speculate(const UpdateSettings& update);
  void check_takes_backward() const;
  void choose_updates(const std::vector<GroupValues>& groups, bool ends);
  void check_values(const UpdateSettings& update) const;
  void check_step_ended(const std::string& what) const;
  bool is_complete(std::size_t layout) const;
  bool is_final(std::size_t layout, const std::vector<std::size_t>& awaited) const;
  bool stays_on_device(std::size_t layout) const;
  void send_sums();
  void send_zero_gradients();
  void complete_gradients(const UpdateSettings& update);
  void begin_step();
  void leave_units();
  // Drops the gradients of the step so far. What it has updated stays.
  void drop_step();
  // `work` moves gradients: where it throws, some are lost, so those of the step so far are
  // dropped.
  template <typename Work>
  auto drop_on_error(const Work& work) {
    try {
      return work();
    } catch (...) {
      drop_lost_gradients();
      throw;
    }
  }
  void drop_lost_gradients();
  void finish_moves();
  using Access = StateUpdater::Access;
  const zero::ParamLayout& begin_access(ParamPlace place, Access access);
  torch::Tensor copy_of(const zero::ParamLayout& param, const zero::ShardedUnit& gathered) const;
  const zero::ParamLayout& begin_state_access(ParamPlace place, Access access);
  void show_gradient(const std::string& name, Access access,
                     const std::function<void(torch::Tensor)>& show);
  void finish_step(bool ending);
  bool is_own_checkpoint_dir(const std::string& directory) const;
  // Does `work`; returns whether an update had failed by its end, on this rank or another: then its
  // error is a line in the log. Throws other errors, on every rank. All ranks call it.
  bool has_failed_update(const std::function<void()>& work);
  void end_step_before_load();
  void begin_axis(const models::RunState* resumed);
  void open_lines();
  void show_step(const StepResult& result, bool was_told_loss);
  void commit(bool ending);

  config::TrainConfig config_;
  const EngineOptions options_;
  const BroughtDevice device_;
  RankLinks ranks_;  // until initialize()
  OwnUnits units_;
  plan::Plan plan_;
  bool planned_ = false;
  torch::Dtype torch_dtype_ = torch::kBFloat16;
  offload::HeldDirectories held_;            // its own swap and checkpoint directories
  std::unique_ptr<RunResources> resources_;  // null before initialize()
  std::unique_ptr<CheckpointWriter> checkpoints_;
  std::unique_ptr<GradientFlow> gradients_;
  std::unique_ptr<UnitOrder> order_;
  LinkBytes before_;  // moved by initialize()
  zero::GatherStall gather_stall_;

  std::int64_t weights_version_ = 0;
  std::vector<int> accumulating_;            // by layout: units between begin_ and send_gradients()
  std::vector<int> backwards_;               // by layout: that this micro-batch has had
  std::vector<int> expected_backwards_;      // of this one: as many as the one before had
  std::vector<bool> completed_;              // by layout: this step's backward has its update
  bool has_backward_ = false;                // since the last end_micro_batch()
  bool is_updating_ = false;                 // a backward that updates units is under way
  std::int64_t micro_batches_ = 0;           // that this step has had
  std::int64_t expected_micro_batches_ = 1;  // of this step: as many as the step before had
  std::int64_t drops_ = 0;                   // of gradients
  torch::Tensor loss_sum_;                   // of the step; one fp64 element on the device
  Progress progress_;
  std::int64_t saved_step_ = 0;   // begun with, loaded, or saved as a checkpoint anywhere
  bool updates_running_ = false;  // of the last step; finish_step() waits for them
  StepResult last_;
  RunIdentity identity_;  // has the place on the monitors' axis
  SamplesAxis axis_ = 1;
  std::unique_ptr<StepLines> lines_;  // of rank 0, from the first step on
  // Set while the weights and states are a mix, because load_checkpoint() failed on the way: why.
  std::string failed_load_;
  // Above 0 while they are, because the backward of this step failed after some of its updates.
  std::int64_t half_updated_ = 0;
  std::string loaded_from_;
};

}  // namespace sluice::train
