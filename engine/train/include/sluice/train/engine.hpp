#pragma once
// Engine: trains a model of the user's own, made of LibTorch modules, in a loop of the user's own,
// with the tiers, budgets and updates of the built-in model. A DeepSpeed JSON file sets where
// weights and optimizer states live, the optimizer, and the number of micro-batches of a step.
//
//   Engine engine("ds.json");
//   Unit block = engine.add_unit("h.0", module);  // in forward order; then the others
//   engine.initialize();
//   for (...) {
//     torch::Tensor loss = f(engine.forward(block, x), ...);  // units are composed freely
//     engine.backward(loss);
//     engine.step();  // after every micro-batch
//   }
//
// The parameters of a unit are gathered together. During a call of the unit they are views of
// gathered bytes, in the configuration's data type; at any other time they are empty. Buffers,
// inputs and modules outside of units stay with the user, in their own data type.
//
// Frozen parameters (requires_grad is false at initialize) have weights, but no gradients and no
// optimizer states. A unit may have frozen and trained parameters. A parameter of several units
// (one tensor) belongs to the first unit, and its gradients add up. So do the gradients of a unit
// that is called more than once. A parameter that a step does not use has a gradient of zero, as in
// DeepSpeed's ZeRO: momentum and weight decay still change it. Freeze parameters that must not
// change.
//
// One Engine at a time in a process. While it lives, LibTorch's tensors on the device come from the
// device tier's budget; a tensor beyond it throws OutOfMemory. Confined to one thread. A forked
// child has none of the engine's threads: calls throw InvalidArgument there, and the destructor
// does not end, so leave the child by _exit().

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace sluice {
enum class LogLevel;  // error, warn, info, debug, from 0: sluice/base/log.hpp
}
namespace sluice::config {
struct TrainConfig;
}

namespace sluice::train {

class Loop;

using Tensors = std::vector<torch::Tensor>;
// Computes a unit's outputs from its inputs and its module's parameters. It runs again for the
// backward pass and must then give the same outputs: it changes no input in place, no parameter,
// and no state that its result depends on. Random numbers of LibTorch's generators, on the CPU and
// the device, are repeated for that second run.
using UnitFunction = std::function<Tensors(const Tensors&)>;

struct EngineOptions {
  // Places everything on the device, without budgets and drives. Gives the bits of an offloaded
  // run, for comparing.
  bool resident = false;
  // Bytes of the device budget for the loop's own tensors (activations, inputs, losses). The plan
  // counts them, and uses the rest to leave weights gathered until backward. Empty: unknown; the
  // tensors may take all bytes that homes and buffers leave.
  std::optional<std::uint64_t> activation_bytes = std::nullopt;
  // True: continues from the last committed step in the configuration's nvme_path or
  // checkpoint_dir; without one, from the modules' values. False: a committed state there is an
  // error.
  bool resume = false;
  // True, with "durability": "none": the swap directory is scratch memory. No state in it outlives
  // the engine, so the next one may use it; checkpoints are what survives.
  bool scratch = false;
  // Logs the configuration's notes, and a line for each steps_per_print steps. False: the caller
  // does.
  bool logs_steps = true;
};

// Result of a call of Engine::step().
struct StepResult {
  bool updated = false;      // false: more micro-batches belong to the step, or it was skipped
  std::int64_t step = 0;     // steps taken so far; skipped steps count
  double loss = 0;           // the last whole step's: the sum of its losses / micro-batches; NaN
                             // where the loop was told of none
  double gradient_norm = 0;  // global, before clipping, without the loss scale
  double learning_rate = 0;  // the last whole step's
  double loss_scale = 1;     // the last whole step's; 1 without fp16
  // Reason of a skip: the loss, a parameter's gradient, or a gradient of another rank. Else empty.
  std::string non_finite;
};

// Totals since initialize().
struct EngineCounters {
  std::uint64_t h2d_bytes = 0;
  std::uint64_t d2h_bytes = 0;
  std::uint64_t nvme_read_bytes = 0;
  std::uint64_t nvme_written_bytes = 0;
  // Seconds that the calling thread waited: for updates, for weights in transfer, for gradients to
  // leave the device.
  double update_stall_seconds = 0;
  double fetch_stall_seconds = 0;
  double gradient_stall_seconds = 0;
  // Updates of units that began before step(): those that it kept, those that were done again, or
  // skipped with their step, and the seconds that threads had computed for these.
  std::uint64_t speculative_updates_kept = 0;
  std::uint64_t speculative_updates_dropped = 0;
  double speculative_dropped_seconds = 0;
  std::uint64_t recomputed_calls = 0;  // calls of units that backward computed again
  std::uint64_t device_peak_bytes = 0;
  std::uint64_t host_peak_bytes = 0;
};

// A handle of a unit. Copyable; it may outlive its engine.
class __attribute__((visibility("default"))) Unit {
 public:
  // Engine::forward; throws InvalidArgument when the engine is gone.
  Tensors operator()(const Tensors& inputs) const;
  torch::Tensor operator()(const torch::Tensor& input) const;

 private:
  friend class Engine;
  Unit(std::weak_ptr<Loop> loop, std::size_t index) : loop_(std::move(loop)), index_(index) {}
  std::weak_ptr<Loop> loop_;
  std::size_t index_;
};

namespace detail {

inline Tensors to_tensors(torch::Tensor one) {
  return {std::move(one)};
}
inline Tensors to_tensors(Tensors all) {
  return all;
}
template <typename... Each>
Tensors to_tensors(const std::tuple<Each...>& all) {
  return std::apply([](const Each&... each) { return Tensors{each...}; }, all);
}
[[noreturn]] __attribute__((visibility("default"))) void refuse_inputs(const std::string& unit,
                                                                       std::size_t given);

// Calls module.forward with the tensors of `x` as arguments, or with the vector when forward takes
// no tensors.
template <typename Module>
Tensors call_forward(Module& module, const std::string& unit, const Tensors& x) {
  constexpr bool kTakesOne = requires {
    module.forward(x[0]);
  };
  constexpr bool kTakesTwo = requires {
    module.forward(x[0], x[0]);
  };
  constexpr bool kTakesThree = requires {
    module.forward(x[0], x[0], x[0]);
  };
  if constexpr (kTakesOne) {
    if (x.size() == 1) return to_tensors(module.forward(x[0]));
  }
  if constexpr (kTakesTwo) {
    if (x.size() == 2) return to_tensors(module.forward(x[0], x[1]));
  }
  if constexpr (kTakesThree) {
    if (x.size() == 3) return to_tensors(module.forward(x[0], x[1], x[2]));
  }
  if constexpr (!kTakesOne && !kTakesTwo && !kTakesThree) return to_tensors(module.forward(x));
  refuse_inputs(unit, x.size());
}

}  // namespace detail

class __attribute__((visibility("default"))) Engine {
 public:
  // Reads and checks the file. Throws ConfigError, an InvalidArgument, with every mistake in it.
  // Throws InvalidArgument in a process that a launcher started as one of several ranks.
  explicit Engine(const std::string& config_path, const EngineOptions& options = {});
  // For the tests of this project: the type is not installed.
  explicit Engine(const config::TrainConfig& config, const EngineOptions& options = {});
  // finish(), except that an error is logged. Logs a warning when trained weights end with it.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // As sluice::set_log_sink, for the lines of all engines, up to level info: this shared library
  // has a log of its own, which a program's set_log_sink does not reach. Thread-safe.
  static void set_log_sink(std::function<void(LogLevel level, std::string_view line)> sink);

  // Called before initialize(), in forward order. `also_uses`: parameters of earlier units that
  // this unit computes with and that its module has not registered (registered ones are found).
  // Throws InvalidArgument on a name that is taken, on names of units and parameters that are no
  // UTF-8 (files of weights and states have UTF-8 names), and on a parameter with a dimension of 0.
  Unit add_unit(const std::string& name, std::shared_ptr<torch::nn::Module> module,
                UnitFunction forward, const Tensors& also_uses = {});
  // Like the first add_unit(), with the module's own forward. It takes one to three tensors, or a
  // vector of tensors, and returns a tensor, a tuple or a vector of tensors.
  template <typename Module>
  Unit add_unit(const std::string& name, std::shared_ptr<Module> module,
                const Tensors& also_uses = {}) {
    Module* const computes = module.get();
    return add_unit(
        name, std::shared_ptr<torch::nn::Module>(std::move(module)),
        [computes, name](const Tensors& x) { return detail::call_forward(*computes, name, x); },
        also_uses);
  }
  template <typename Module>
  Unit add_unit(const std::string& name, const torch::nn::ModuleHolder<Module>& module,
                const Tensors& also_uses = {}) {
    return add_unit(name, module.ptr(), also_uses);
  }

  // Plans, takes all memory and files, and moves the parameters' values (fp32, bf16, fp16 or fp64,
  // in CPU memory) to their homes. From then on the modules own no parameter bytes, also after an
  // error, which makes this engine unusable. On a GPU: call it before LibTorch does anything else
  // there, once in a process at a time. Blocks. Throws DoesNotFit with the plan as a table,
  // OutOfMemory, IoError, StorageError, InvalidArgument.
  void initialize();
  // The device that the units compute on, after initialize(). Inputs and targets must be there.
  torch::Device device() const;
  // Steps taken, including those before a resume.
  std::int64_t steps() const;
  // The plan as a table for people.
  std::string plan_table() const;

  // Calls a unit. With gradients enabled, "sluice": {"activations"} chooses what is saved for
  // backward: `keep` saves LibTorch's graph; `recompute` saves the inputs and calls the unit again;
  // `auto` measures two micro-batches, then saves the graphs that the device budget has room for. A
  // second call leaves the module's buffers as the first one did (BatchNorm's statistics).
  // Without gradients (torch::NoGradGuard, c10::InferenceMode) nothing is saved. Throws
  // InvalidArgument when a registered parameter was replaced (set_data, to(), register_parameter),
  // when an input or a parameter changed in place, OutOfMemory, and the error of the unit's last
  // update. The change of a parameter would be lost: compute with a changed copy. A frozen
  // embedding with `max_norm` may rescale its rows. Two changes are not noticed. A write through
  // Tensor::data() is kept by some tiers and lost by others. With an assigned member
  // (`linear->weight = other`) the unit computes with `other`, which nothing trains.
  Tensors forward(const Unit& unit, const Tensors& inputs);
  // Calls a unit with one input and one output. Throws InvalidArgument where it has several.
  torch::Tensor forward(const Unit& unit, const torch::Tensor& input);

  // Backward of a scalar loss. Pass the loss unscaled, preferably in fp32: backward divides it by
  // gradient_accumulation_steps and, with fp16, multiplies it by the loss scale. May be called
  // several times before step(), for different losses. Throws InvalidArgument when the loss depends
  // on no unit that trains, when this loss had its backward, and when the weights have changed
  // since its forward; also the errors of the units. After an error the step's gradients are
  // dropped: start the step over at its first micro-batch.
  // With "optimizer_in_backward" the backward of the step's last micro-batch updates each unit when
  // its gradient is complete. It is one backward: another one before step() throws InvalidArgument
  // and changes nothing, so add the losses. After an error in it, weights and states may be a mix
  // of two steps: then every call throws Error until a checkpoint is loaded.
  void backward(const torch::Tensor& loss);
  // Called after every micro-batch. The last one of a step begins the updates, which run during the
  // next forward. A non-finite loss or gradient skips the step and lowers a dynamic loss scale.
  // With "sluice": {"non_finite": "stop"}, or when that scale is at its minimum, such a step throws
  // Error instead; the weights are unchanged. Throws InvalidArgument without a backward() since the
  // last call. After an error of the last one of a step, its gradients are dropped as above. So
  // they are where some do not reach their home, by the call that waits for them and throws: any
  // one of this class. With "optimizer_in_backward" it throws Error after a gradient that was not
  // finite when a unit had its update already, with a mix as above; after its other errors it may
  // be called again.
  StepResult step();

  // Waits for updates and commits the last step as the configuration says. Training may continue.
  // Throws StorageError or IoError when everything else is done but checkpoints, or values of the
  // monitors, are missing, because they could not be written.
  void finish();
  // Ends the training as finish() does. Then the modules' parameters have their trained weights, in
  // CPU memory of their own and in the type that computes, for torch::save and other code; the
  // memory is beyond the budgets. The engine and its units take no further calls. Blocks. Throws as
  // finish(), and std::bad_alloc or LibTorch's error without memory; then no parameter has changed.
  void restore_modules();

  // A copy of a parameter's current weights, in CPU memory and in the type that computes, by its
  // name ("h.0.fc.weight"); a tied one has several. Blocks. Throws InvalidArgument for an unknown
  // name, and the error of the unit's last update.
  torch::Tensor parameter(const std::string& name);
  // Writes the last whole step to DIRECTORY/step-NNNNNNNN, without frozen parameters. Then removes
  // all but the newest `keep` checkpoints of this run's line: of this run and those that it
  // resumed. `sluice export` reads it. Blocks. Throws IoError, StorageError; then all checkpoints
  // are unchanged.
  void save_checkpoint(const std::string& directory);
  // Continues from the newest checkpoint below `directory`, or from a run's swap directory; drops
  // the gradients so far. Returns the step. Blocks. Throws StorageError when the state has other
  // units, and IoError or StorageError when there is none; then nothing has changed. Throws
  // StorageError or IoError when it fails on the way; then every call but load_checkpoint() throws
  // until one succeeds.
  std::int64_t load_checkpoint(const std::string& directory);

  EngineCounters counters() const;

 private:
  void check_own(const Unit& unit) const;
  std::shared_ptr<Loop> loop_;
};

}  // namespace sluice::train
