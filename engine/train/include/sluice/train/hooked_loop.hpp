#pragma once
// HookedLoop: training of a model that another program calls. Hooks on the model's forward and
// backward enter and leave its units; this class gathers their weights, takes their gradients and
// steps. The Python package is built on it. Engine is the choice for C++.
//
//   HookedLoop loop(config);
//   const std::size_t block = loop.add_unit("h.0", params);  // in forward order; then the others
//   loop.initialize();
//   forward of a unit    enter · the unit computes · leave
//   backward of a unit   begin_backward · enter · begin_gradients · it computes · send_gradients
//                        · leave
//   micro-batch          add_loss() and end_micro_batch()
//   step                 end_step()
//
// Between enter() and leave() the parameters of a unit are views of gathered weights; at any other
// time they are empty. Tensors that autograd saved in a unit's forward see the weights again in its
// backward. Rules for frozen, tied and unused parameters are those of Engine.
//
// The configuration's "device" computes. LibTorch keeps its allocators; only the memory of this
// class is planned. On the CPU, "device_bytes" brings LibTorch's tensors into the budget, but for
// copies that this class gives away (outside_budget.hpp). On a GPU, the stream that is current at
// initialize() computes: on another, enter() and the calls for single weights and gradients throw
// InvalidArgument.
// Confined to the thread that trains. LibTorch may run a backward on a thread of its own, while
// that thread waits. After an exception in backward: forget_gradients().

#include <torch/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sluice/config/train_config.hpp"
#include "sluice/train/engine.hpp"
#include "sluice/train/pass.hpp"
#include "sluice/zero/communicator.hpp"

namespace sluice::train {

class LoopCore;

// Values of a parameter group for one step, in place of the configuration's. Empty ones stay, and
// the optimizer ignores what it has not.
struct GroupValues {
  double learning_rate = 0;
  double weight_decay = 0;
  std::optional<double> beta1 = {};
  std::optional<double> beta2 = {};
  std::optional<double> eps = {};
  std::optional<double> momentum = {};
  std::optional<double> dampening = {};
};

// A function that Engine has too keeps Engine's contract.
class __attribute__((visibility("default"))) HookedLoop {
 public:
  // Rank config.rank of config.world_size; one rank needs no communicators. `communicator` is used
  // by the thread that trains and by the one that reduces, never at once, `gather_communicator` by
  // one of its own. Every rank makes the same calls in order, those for single parameters too. Each
  // rank has its own swap folders.
  explicit HookedLoop(const config::TrainConfig& config, const EngineOptions& options = {},
                      std::unique_ptr<zero::Communicator> communicator = nullptr,
                      std::unique_ptr<zero::Communicator> gather_communicator = nullptr);
  ~HookedLoop();  // waits for transfers; commits nothing
  HookedLoop(const HookedLoop&) = delete;
  HookedLoop& operator=(const HookedLoop&) = delete;

  // A unit, its parameters by the names that are saved, and the units that are entered whenever
  // this one is. A parameter of several units (one tensor) belongs to the first. Returns the unit's
  // index. Throws InvalidArgument on a name that is taken.
  std::size_t add_unit(const std::string& name,
                       const std::vector<std::pair<std::string, torch::Tensor>>& params,
                       const std::vector<std::size_t>& inside = {});
  void initialize();
  // Plans without taking anything, in place of initialize(): plan_table(), plan_json() and
  // choices() are there, and nothing else may be called. Parameters may be on the meta device.
  // Throws DoesNotFit, InvalidArgument.
  void preview();

  // Gathers a unit's weights and binds its parameters to them. Blocks. Each enter() has a leave();
  // units may be entered while others are. Throws IoError, OutOfMemory, InvalidArgument where a
  // parameter was given other bytes. Throws the error of an update that failed, of any unit, until
  // a checkpoint is loaded; so do the calls for single parameters.
  void enter(std::size_t unit, Pass pass);
  void leave(std::size_t unit);
  // Whether a tensor aliases gathered weights: what it shows is gone after leave().
  bool is_weight(const torch::Tensor& tensor) const;
  // As enter() and leave(), for a look at the values between passes. Meanwhile parameter(),
  // master(), moment() and gradient() work, and forget_gradients() leaves the unit gathered.
  // Tensors that alias its weights keep their values after hide(), in memory of their own. Where
  // there is none, hide() throws LibTorch's error when it has left the unit, and they have no
  // values.
  void show(std::size_t unit);
  void hide(std::size_t unit);

  // Called before the first backward of a micro-batch, more often if that is easier. Waits for the
  // updates of the last step, and commits it. `groups`: what end_step() will probably be given.
  // Updates of units with second states ("speculative_bytes") begin with them in the last backward
  // of a step; end_step() does them again where it is given others, or a gradient has changed.
  // With "optimizer_in_backward" the last backward of a step updates all units with them: the first
  // call of a micro-batch reads `is_last`, or counts gradient_accumulation_steps. Throws
  // InvalidArgument for values that no step can have; where the step has been updated already; and
  // for a backward that is not the last one, where the plan has room for those of one backward.
  void begin_backward(const std::vector<GroupValues>& groups = {},
                      std::optional<bool> is_last = {});
  // The gradients of an entered unit's parameters become buffers that start with what the step has
  // accumulated.
  void begin_gradients(std::size_t unit);
  // Sends the unit's gradients home. Throws InvalidArgument where a gradient is another tensor than
  // the one that begin_gradients() gave. `awaited`: units with further calls in the graph, whose
  // backward this micro-batch may still have. In the last backward with "optimizer_in_backward",
  // parameters that none of them uses are updated. After a gradient that is not finite none is.
  void send_gradients(std::size_t unit, const std::vector<std::size_t>& awaited = {});
  // Adds the loss of a backward, unscaled, to the step's. One element.
  void add_loss(const torch::Tensor& loss);
  void end_micro_batch();
  // Drops the gradients of the step so far and leaves every entered unit: the step starts over.
  // With "optimizer_in_backward" some units may have been updated: then weights and states are a
  // mix of two steps, and only load_checkpoint() goes on. After the backward that has updated them
  // it drops nothing.
  void forget_gradients();
  // Grows when the gradients of the step so far are dropped: by forget_gradients(), by
  // load_checkpoint(), and where end_step() must not skip a step that is not finite. So it does in
  // any call that throws because gradients were lost on their way to memory or to the drive, with a
  // warning in the log. The step starts over then; a call that throws otherwise changes nothing.
  std::int64_t drops() const;
  // Ends the step: norm over all units, skip or clip, and the start of the updates. `groups`: by
  // parameter group of the configuration; empty: its values and schedule. Throws InvalidArgument
  // where a unit is entered, or a parameter has a gradient from outside its unit's backward, or
  // `groups` differ from those that backward has updated with ("optimizer_in_backward"). There it
  // throws Error after a gradient that was not finite when a unit had its update already;
  // IoError and StorageError where the files of the monitors cannot be opened, before anything of
  // the step has happened; Error where the step must not be skipped.
  StepResult end_step(const std::vector<GroupValues>& groups = {});

  // As in Engine (engine.hpp).
  void finish();
  torch::Tensor parameter(const std::string& name);
  // Copies of several, in this order. Each unit is gathered once, so ask for all of a unit at once.
  std::vector<torch::Tensor> parameters(const std::vector<std::string>& names);
  // Sets weights of parameters by name, and the masters of those that train. On a drive all states
  // of a unit are written, so give all parameters of a unit in one call. Graphs from before have no
  // backward. No unit is entered or shown. Throws InvalidArgument for values of another shape, and
  // for masters that are not finite; nothing has changed then.
  void set_parameters(const std::map<std::string, torch::Tensor>& values);
  // torch.optim's names of the moments that every trained parameter has: exp_avg, exp_avg_sq.
  std::vector<std::string> moment_names() const;
  // A copy of a parameter's fp32 master, or of moment `index` of moment_names(). Waits for updates.
  // Throws InvalidArgument for a frozen parameter. No unit is entered; some may be shown.
  torch::Tensor master(const std::string& name);
  torch::Tensor moment(const std::string& name, std::size_t index);
  // Sets them. The weights follow a master; bf16 moments are rounded to nearest. No unit is entered
  // or shown.
  void set_master(const std::string& name, const torch::Tensor& values);
  void set_moment(const std::string& name, std::size_t index, const torch::Tensor& values);
  // A copy of the gradient that the step has accumulated, times the loss scale and summed over the
  // ranks; undefined before a backward of its unit. No unit is entered; some may be shown.
  torch::Tensor gradient(const std::string& name);
  // Sets it to `values`: the parameter's shape, any type and device, rounded to the type of
  // gradients, the same on every rank. Legal after a backward of its unit and before end_step().
  // Throws Error otherwise, or for another shape; then the gradient is as before.
  void set_gradient(const std::string& name, const torch::Tensor& values);

  // As in Engine (engine.hpp).
  void save_checkpoint(const std::string& directory);
  std::int64_t load_checkpoint(const std::string& directory);
  // The checkpoint's folder that load_checkpoint() has loaded last, which was given or lies in the
  // directory that was; empty: none yet.
  std::string loaded_from() const;
  // After a load_checkpoint() whose states lack what belongs to them in `directory`: until another
  // load_checkpoint() nothing may be computed, saved or committed.
  void load_failed(const std::string& directory);

  // The parameter groups of the configuration, after initialize().
  struct Group {
    std::vector<std::string> parameters;  // names
    config::OptimizerConfig optimizer;    // its values, before any schedule
  };
  std::vector<Group> groups() const;

  EngineCounters counters() const;
  // Where the weights are gathered. After initialize().
  torch::Device device() const;
  const config::TrainConfig& config() const;
  std::string plan_table() const;
  std::string plan_json() const;
  std::vector<std::string> choices() const;
  std::int64_t steps() const;    // skipped ones included
  std::int64_t updates() const;  // steps that were not skipped
  double loss_scale() const;     // for the next backward; 1 without fp16
  // Whether updates may begin before end_step(). After initialize().
  bool speculates() const;
  // Whether the last backward of a step updates the units ("optimizer_in_backward").
  bool updates_in_backward() const;
  // Whether that of the step in progress has begun to, and no update has failed: end_step() is
  // next.
  bool waits_for_step() const;
  // Whether it has failed after some of them: only load_checkpoint() goes on.
  bool is_half_updated() const;
  // From gradient(), a sum over the ranks, to the gradient of an update. Without the loss scale.
  double gradient_divisor() const;
  // Grows when the weights change.
  std::int64_t weights_version() const;

 private:
  std::unique_ptr<LoopCore> core_;
};

}  // namespace sluice::train
