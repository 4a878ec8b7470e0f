#pragma once
// StepRunner: one optimizer step, layer by layer over the micro-batches of a pass, and evaluation.
// The same code for every tier: where bytes are is the units', the input store's and the updater's
// business.
//
// A step is one pass or several (Plan::passes); of several, gradients are summed on the device.
//
//   forward, unit u    gather (the prefetcher began it) · every micro-batch · its output is the
//                      next unit's input · release
//   last unit          forward and backward at once
//   backward, unit u   gather · per micro-batch backward, accumulate · norm · gradients go home ·
//                      release
//   step               norm over all units · skip or clip · updates begin, in forward order; the
//                      next forward overtakes none. Where they need not wait for the norm (neither
//                      clipping nor fp16) each began when its gradients were at home
//
// Forward keeps the activations of the units that the plan says; those of the others are computed
// again in backward, from the unit's input.

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "device/compute_timeline.hpp"
#include "sluice/models/dataset.hpp"
#include "sluice/models/gpt2.hpp"
#include "step/gradient_flow.hpp"
#include "step/run_resources.hpp"

namespace sluice::train {

// Seconds the computing thread waited, by what for; grows over the runner's life.
struct RunnerStalls {
  zero::GatherStall gather;
  double inputs_in_seconds = 0;
  double inputs_out_seconds = 0;
  double gradients_seconds = 0;
};

struct BackwardResult {
  double loss = 0;             // mean over the micro-batches
  double gradient_norm = 0;    // global, before clipping, without the loss scale
  std::string not_finite;      // empty, or what was not: the loss, or a parameter's gradient
  bool updates_begun = false;  // with what at_once said
  std::uint64_t tokens = 0;
};

// Confined to the thread that trains.
class StepRunner {
 public:
  StepRunner(RunResources& resources, std::uint64_t seed);
  ~StepRunner();
  StepRunner(const StepRunner&) = delete;
  StepRunner& operator=(const StepRunner&) = delete;

  // Called after each stage of a pass; for sampling memory. May be empty.
  void set_stage_hook(std::function<void()> hook) { stage_hook_ = std::move(hook); }
  // Called between the forward and the backward part of every step: the updates of the step before
  // are all done then.
  using BetweenHook = std::function<void()>;

  // Forward and backward of step `step` (from 1), of the loss times `loss_scale`. Afterwards every
  // unit's gradients wait at their homes; or, with `at_once`, have been used: then each unit's
  // update began when its gradients had arrived, unless the loss, or the first gradient, was not
  // finite. A later one that is not makes it throw Error.
  BackwardResult forward_backward(const models::Dataset& data, std::int64_t step, double loss_scale,
                                  const std::optional<UpdateSettings>& at_once,
                                  const BetweenHook& between);
  // Begins the update of every unit, in forward order.
  void begin_updates(const UpdateSettings& settings) { gradients_.begin_updates(settings); }
  // Forgets the gradients of a skipped step.
  void drop_gradients() { gradients_.drop(); }
  // Blocks until every update that was begun has ended; throws its error.
  void finish_updates();

  // Mean cross-entropy over the evaluation windows. `progress` gets windows done and all; when it
  // returns false the evaluation ends there, without a result.
  std::optional<double> evaluate(const models::Dataset& data, std::uint64_t window_limit,
                                 const std::function<bool(std::uint64_t, std::uint64_t)>& progress);

  RunnerStalls stalls() const;

 private:
  struct Batch {
    torch::Tensor inputs;   // (B, T) int64
    torch::Tensor targets;  // (B, T) int64
  };
  torch::Tensor draw_windows(const models::Dataset& data, std::int64_t step,
                             std::size_t micro_batch) const;
  Batch batch_of(const torch::Tensor& windows) const;
  void bring_tokens(const models::Dataset& data, std::int64_t step);
  Batch training_batch(const models::Dataset& data, std::int64_t step,
                       std::size_t micro_batch) const;
  models::DropoutKey dropout_key(std::int64_t step, std::int64_t micro_batch) const;

  // What a unit's stage computes, in the trace, until its end: on the host when it is issued, and
  // on a GPU when it runs.
  struct Span {
    TraceSpan issued;
    ComputeTimeline::Span runs;
  };
  Span span(const char* what, std::size_t unit, std::int64_t step);
  // Views of the parameters that a unit borrows, in the flat buffers of their owners.
  template <typename FlatOf>
  std::vector<torch::Tensor> borrowed_views(std::size_t unit, const FlatOf& flat_of) const;
  // Of a pass's micro-batch, in the step.
  std::size_t number_of(std::size_t micro_batch) const {
    return pass_ * micro_batches_ + micro_batch;
  }
  bool is_last_pass() const { return pass_ + 1 == plan_.passes(); }
  void send_gradients(std::size_t unit);
  void bind(std::size_t unit);
  void begin_gradients(std::size_t unit);
  void enter_stage(std::size_t unit);
  void leave_stage(std::size_t unit);
  // A unit's input as backward needs it, and its output with what LibTorch keeps for it.
  struct Graph {
    torch::Tensor x;
    torch::Tensor y;
  };
  Graph run_with_gradients(std::size_t unit, torch::Tensor x, std::int64_t step,
                           std::size_t micro_batch);
  torch::Tensor input_of(const models::Dataset& data, std::int64_t step, std::size_t unit,
                         std::size_t micro_batch, InputStore::Keep keep);
  void forward_unit(const models::Dataset& data, std::int64_t step, std::size_t unit);
  void last_unit(const models::Dataset& data, std::int64_t step, double loss_scale);
  void run_pass(const models::Dataset& data, std::int64_t step, double loss_scale,
                const BetweenHook& between);
  void backward_unit(const models::Dataset& data, std::int64_t step, std::size_t unit);
  double evaluate_pass(const models::Dataset& data, std::uint64_t window_limit, std::uint64_t first,
                       std::uint64_t count);

  RunResources& resources_;
  const plan::Plan& plan_;
  const std::uint64_t seed_;
  const std::size_t micro_batches_;  // of a pass
  const std::size_t last_;           // index of the last unit
  const std::vector<std::shared_ptr<models::UnitModule>> modules_;
  GradientFlow gradients_;
  std::function<void()> stage_hook_;
  const TraceRow compute_row_;
  ComputeTimeline timeline_;
  zero::GatherStall gather_stall_;
  // Of the step: the pass, how updates begin, and the sum of the losses so far, one fp64 element on
  // the device.
  std::size_t pass_ = 0;
  std::optional<UpdateSettings> at_once_;
  torch::Tensor loss_sum_;
  std::vector<std::vector<Graph>> kept_;  // by unit and micro-batch; empty: not kept
  torch::Tensor tokens_;                  // on a GPU: (micro-batches, B, T + 1) int64, of the step
};

}  // namespace sluice::train
