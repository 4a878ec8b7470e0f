#pragma once
// StepRunner: forward and backward of one optimizer step, layer by layer over the micro-batches of
// a pass, and evaluation. One code path for every tier: the units, the input store and the updater
// know where bytes are.
//
// A step is one pass or several (Plan::passes). With several passes, gradients stay on the device
// between passes.
//
//   forward, unit u    gather (the prefetcher began it) · every micro-batch · its output is the
//                      next unit's input · release
//   last unit          forward and backward at once
//   backward, unit u   gather · per micro-batch backward, accumulate · norm · gradients go home ·
//                      release
//   end of the step    norm over all units · skip or clip · updates begin in forward order
//                      (step_end.hpp). Without clipping and fp16 each unit's update begins earlier:
//                      when its gradient is at home
//
// Forward keeps LibTorch's graph for the units that the plan names (activations_saved). Backward
// computes the other units again from their inputs.

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "device/compute_timeline.hpp"
#include "sluice/models/dataset.hpp"
#include "sluice/models/gpt2.hpp"
#include "step/gradients/gradient_flow.hpp"
#include "step/micro_batches.hpp"
#include "step/run_resources.hpp"
#include "step/step_end.hpp"

namespace sluice::train {

// Seconds the computing thread waited, by cause; they grow over the runner's life.
struct RunnerStalls {
  zero::GatherStall gather;
  double inputs_in_seconds = 0;
  double inputs_out_seconds = 0;
  double gradients_seconds = 0;
};

// Confined to the thread that trains.
class StepRunner {
 public:
  StepRunner(RunResources& resources, std::uint64_t seed);
  ~StepRunner();
  StepRunner(const StepRunner&) = delete;
  StepRunner& operator=(const StepRunner&) = delete;

  // Called after each stage of a pass, to sample memory. May be empty; must not throw.
  void set_stage_hook(std::function<void()> hook) { stage_hook_ = std::move(hook); }
  // Called once per step, between forward and backward of the first pass. The updates of the step
  // before have ended then. May be empty.
  using BetweenHook = std::function<void()>;

  // Forward and backward of step `number` (from 1); the loss is multiplied by `loss_scale`.
  // `update`: of the end of this step. Where updates need all gradients, every unit's gradients
  // wait at their homes afterwards. Otherwise each unit's update begins when its gradient is at
  // home, unless the loss or the first gradient (the last unit's) is non-finite: then no update
  // begins. A later non-finite gradient throws Error. Also throws IoError, OutOfMemory and
  // CudaError; after any error the runner can only be destroyed.
  BackwardResult forward_backward(const models::Dataset& data, std::int64_t number,
                                  double loss_scale, const UpdateSettings& update,
                                  const BetweenHook& between);
  // As sluice::train::end_step(), for the gradients of that step.
  StepEnd end_step(const BackwardResult& backward, const UpdateSettings& update,
                   Progress& progress) {
    return train::end_step(plan_.config, backward, update, gradients_, progress);
  }
  // Blocks until every update that was begun has ended; throws its error.
  void finish_updates();

  // Mean cross-entropy over the evaluation windows, of which there is at least one. Call
  // finish_updates() first. The ranks share the micro-batches of windows. `progress` gets the
  // windows done and the total; when it returns false, on every rank, the evaluation ends there,
  // without a result.
  std::optional<double> evaluate(const models::Dataset& data, std::uint64_t window_limit,
                                 const std::function<bool(std::uint64_t, std::uint64_t)>& progress);

  RunnerStalls stalls() const;
  // Micro-batches of units whose saved activations were dropped, because the device's memory had no
  // room for a block: backward computed them again.
  std::uint64_t dropped_activations() const { return dropped_; }

 private:
  // The step in progress.
  struct Step {
    std::int64_t number;  // from 1
    MicroBatches batches;
    double loss_scale;
    const UpdateSettings& update;
    torch::Tensor loss_sum;  // one fp64 element on the device, unscaled
    std::size_t pass = 0;
    std::size_t micro_batches = 0;  // of the pass
    double forward_seconds = 0;
    double backward_seconds = 0;
  };
  // One unit and micro-batch of it.
  struct Cell {
    std::size_t unit;
    std::size_t micro_batch;  // of the pass
  };
  // A unit's computation in the trace, until the end of the scope: on the host when it is issued,
  // on a GPU when it runs.
  struct Span {
    TraceSpan issued;
    ComputeTimeline::Span runs;
  };
  Span span(const char* what, std::size_t unit, const Step& step);
  // A unit's input, and its output with the graph that LibTorch keeps for backward.
  struct Graph {
    torch::Tensor x;
    torch::Tensor y;
  };

  bool is_last_pass(const Step& step) const { return step.pass + 1 == plan_.passes(); }
  // Index in the step of a pass's micro-batch.
  std::size_t index_of(const Step& step, std::size_t micro_batch) const {
    return step.pass * plan_.schedule.passes.each + micro_batch;
  }
  models::DropoutKey dropout_key(const Step& step, std::size_t micro_batch) const;
  // Views of the parameters that a unit borrows, in the flat buffers of their owners.
  template <typename FlatOf>
  std::vector<torch::Tensor> borrowed_views(std::size_t unit, const FlatOf& flat_of) const;
  void bind(std::size_t unit);
  void enter_stage(std::size_t unit);
  void leave_stage(std::size_t unit);
  void choose_updates(const Step& step);
  void begin_gradients(std::size_t unit);
  void send_gradients(const Step& step, std::size_t unit);
  // Whether forward saves the activations of a micro-batch. The last pass may have more of them
  // than are saved.
  bool saves(const Cell& cell) const { return cell.micro_batch < saved_[cell.unit].size(); }
  bool is_saved(const Cell& cell) const;
  // Drops the saved activations that backward needs last; false when there are none but those of
  // the unit that computes. Called by the device's memory, on the training thread or on one of
  // LibTorch's for which the training thread waits.
  bool drop_activations();
  Graph run_with_gradients(const Step& step, const Cell& cell, torch::Tensor x);
  torch::Tensor input_of(const Step& step, const Cell& cell, InputStore::AfterGet after);
  void prefetch_input(const Step& step, const Cell& cell);
  void forward_unit(Step& step, std::size_t unit);
  void last_unit(Step& step);
  void backward_unit(Step& step, std::size_t unit);
  void run_pass(Step& step, const BetweenHook& between);
  // With wall_clock_breakdown, waits for the issued work of a GPU, so that its time is seen.
  void wait_to_time(const Step& step) const;
  double evaluate_pass(const models::Dataset& data, std::uint64_t window_limit, std::uint64_t first,
                       std::uint64_t count);

  RunResources& resources_;
  const plan::Plan& plan_;
  const std::uint64_t seed_;
  const std::size_t last_;  // index of the last unit
  const std::vector<std::shared_ptr<models::UnitModule>> modules_;
  GradientFlow gradients_;
  std::function<void()> stage_hook_;
  const TraceRow compute_row_;
  ComputeTimeline timeline_;
  zero::GatherStall gather_stall_;
  std::vector<std::vector<Graph>> saved_;  // by unit and saved micro-batch
  std::size_t computing_ = 0;              // unit
  std::uint64_t dropped_ = 0;
  const std::thread::id thread_ = std::this_thread::get_id();
};

}  // namespace sluice::train
