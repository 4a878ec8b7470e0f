#include "step/step_runner.hpp"

#include <chrono>
#include <numeric>
#include <utility>

#include "device/tensor_bytes.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/time/elapsed.hpp"
#include "sluice/plan/stages.hpp"

namespace sluice::train {

using AfterGet = InputStore::AfterGet;
using Clock = std::chrono::steady_clock;

StepRunner::StepRunner(RunResources& resources, std::uint64_t seed)
    : resources_(resources),
      plan_(resources.plan),
      seed_(seed),
      last_(resources.plan.layouts.size() - 1),
      modules_(models::make_gpt2_modules(resources.plan.model,
                                         torch_dtype(resources.plan.compute_dtype),
                                         resources.compute.where)),
      gradients_(resources),
      compute_row_(resources.trace, "compute"),
      timeline_(*resources.device, resources.trace),
      saved_(last_) {
  for (std::size_t u = 0; u < last_; ++u) {
    if (plan_.units[u].activations_saved) saved_[u].resize(plan_.schedule.passes.each);
  }
  resources_.device->memory().set_make_room([this] { return drop_activations(); });
}

// Modules hold views of the resources' buffers.
StepRunner::~StepRunner() {
  resources_.device->memory().set_make_room({});
  for (const auto& module : modules_) module->unbind();
}

models::DropoutKey StepRunner::dropout_key(const Step& step, std::size_t micro_batch) const {
  return {.training = true,
          .seed = seed_,
          .step = step.number,
          .micro_batch = number_in_step(plan_, index_of(step, micro_batch))};
}

StepRunner::Span StepRunner::span(const char* what, std::size_t unit, const Step& step) {
  const std::string& name = plan_.layouts[unit].name;
  return {.issued = {compute_row_,
                     what,
                     name,
                     {"step", step.number},
                     {"micro_batches", static_cast<std::int64_t>(step.micro_batches)}},
          .runs = {timeline_, what, name}};
}

template <typename FlatOf>
std::vector<torch::Tensor> StepRunner::borrowed_views(std::size_t unit,
                                                      const FlatOf& flat_of) const {
  std::vector<torch::Tensor> views;
  for (const auto& from : plan_.layouts[unit].borrowed)
    views.push_back(
        models::view_of(plan_.layouts[from.unit].params[from.param], flat_of(from.unit)));
  return views;
}

void StepRunner::bind(std::size_t unit) {
  const auto flat = [&](std::size_t u) {
    return tensor_over(resources_.units[u]->weights(), plan_.compute_dtype,
                       resources_.compute.where);
  };
  modules_[unit]->bind(plan_.layouts[unit], flat(unit), borrowed_views(unit, flat));
}

void StepRunner::begin_gradients(std::size_t unit) {
  gradients_.begin_unit(unit);
  const auto flat = [&](std::size_t u) {
    return tensor_over(resources_.units[u]->gradients(), plan_.config.gradient_dtype(),
                       resources_.compute.where);
  };
  modules_[unit]->bind_gradients(plan_.layouts[unit], flat(unit), borrowed_views(unit, flat));
}

bool StepRunner::is_saved(const Cell& cell) const {
  return saves(cell) && saved_[cell.unit][cell.micro_batch].y.defined();
}

bool StepRunner::drop_activations() {
  if (std::this_thread::get_id() != thread_) return false;  // the activations are this thread's
  for (std::size_t u = 0; u < last_; ++u) {
    if (u == computing_) continue;
    for (std::size_t m = saved_[u].size(); m-- > 0;) {
      if (!is_saved({u, m})) continue;
      saved_[u][m] = Graph{};
      if (++dropped_ == 1) {
        log(LogLevel::warn,
            "the device's memory has no room for a block, so saved activations make room and are "
            "computed again: the steps take longer (lower \"sluice\": {\"device_bytes\"} to plan "
            "with fewer saved activations)");
      }
      return true;
    }
  }
  return false;
}

void StepRunner::enter_stage(std::size_t unit) {
  computing_ = unit;
  resources_.prefetcher->enter_stage(gather_stall_);
  bind(unit);
}

void StepRunner::leave_stage(std::size_t unit) {
  if (stage_hook_) stage_hook_();
  modules_[unit]->unbind();
  resources_.prefetcher->leave_stage();
}

torch::Tensor StepRunner::input_of(const Step& step, const Cell& cell, AfterGet after) {
  if (cell.unit == 0) return step.batches.at(index_of(step, cell.micro_batch)).inputs;
  return resources_.inputs->get(cell.unit, cell.micro_batch, after);
}

// Begins to bring the input of the micro-batch after this one to the device.
void StepRunner::prefetch_input(const Step& step, const Cell& cell) {
  if (plan_.config.sluice.overlap && cell.micro_batch + 1 < step.micro_batches)
    resources_.inputs->begin_get(cell.unit, cell.micro_batch + 1);
}

// The graph refers to the module's parameters, not to the bytes that they are bound to now. Those
// bytes may be evicted before backward, which binds the parameters anew.
StepRunner::Graph StepRunner::run_with_gradients(const Step& step, const Cell& cell,
                                                 torch::Tensor x) {
  Graph graph;
  if (cell.unit == 0) {
    graph.x = std::move(x);
  } else {
    graph.x = x.detach().requires_grad_(true);
  }
  graph.y = modules_[cell.unit]->forward(graph.x, dropout_key(step, cell.micro_batch));
  return graph;
}

void StepRunner::forward_unit(Step& step, std::size_t unit) {
  enter_stage(unit);
  const Span computing = span("forward", unit, step);
  for (std::size_t m = 0; m < step.micro_batches; ++m) {
    torch::Tensor x = input_of(step, {unit, m}, AfterGet::retain);
    if (unit > 0) prefetch_input(step, {unit, m});
    torch::Tensor y;
    if (saves({unit, m})) {
      saved_[unit][m] = run_with_gradients(step, {unit, m}, std::move(x));
      y = saved_[unit][m].y.detach();
    } else {
      const torch::NoGradGuard no_grad;
      y = modules_[unit]->forward(x, dropout_key(step, m));
      x = torch::Tensor();
    }
    resources_.inputs->put(unit + 1, m, std::move(y));
  }
  leave_stage(unit);
}

void StepRunner::last_unit(Step& step) {
  enter_stage(last_);
  const Span computing = span("loss", last_, step);
  begin_gradients(last_);
  const double share = 1.0 / static_cast<double>(plan_.config.gradient_accumulation_steps);
  for (std::size_t m = 0; m < step.micro_batches; ++m) {
    const Batch batch = step.batches.at(index_of(step, m));
    torch::Tensor x = resources_.inputs->get(last_, m, AfterGet::release);
    prefetch_input(step, {last_, m});
    x = x.detach().requires_grad_(true);
    torch::Tensor loss = modules_[last_]->loss(x, batch.targets, share * step.loss_scale);
    step.loss_sum.add_(loss.detach());
    loss.backward();
    loss = torch::Tensor();
    torch::Tensor gradient = x.grad();
    x = torch::Tensor();
    resources_.inputs->put(last_, m, gradient.contiguous());
  }
  if (is_last_pass(step)) choose_updates(step);
  send_gradients(step, last_);
  leave_stage(last_);
}

// Decides when the updates of this step begin.
void StepRunner::choose_updates(const Step& step) {
  if (plan_.config.updates_need_all_gradients()) {
    gradients_.speculate(step.update, step.loss_scale * plan_.config.divisor_of_sum());
  } else if (is_finite_on_all_ranks(resources_, step.loss_sum.item<double>())) {
    // Reading the loss waits for all issued work, so it is read here only if updates depend on it.
    gradients_.update_immediately(step.update);
  }
}

void StepRunner::send_gradients(const Step& step, std::size_t unit) {
  if (is_last_pass(step)) {
    gradients_.send_unit(unit);
  } else {
    gradients_.send_partial(unit);
  }
}

void StepRunner::backward_unit(Step& step, std::size_t unit) {
  enter_stage(unit);
  const bool planned = plan_.units[unit].activations_saved;
  const Span computing = span(planned ? "backward" : "recompute+backward", unit, step);
  begin_gradients(unit);
  for (std::size_t m = 0; m < step.micro_batches; ++m) {
    const bool saved = is_saved({unit, m});
    torch::Tensor x = saved ? torch::Tensor() : input_of(step, {unit, m}, AfterGet::release);
    torch::Tensor dy = resources_.inputs->get(unit + 1, m, AfterGet::release);
    if (unit > 0 && !saves({unit, m + 1})) prefetch_input(step, {unit, m});
    prefetch_input(step, {unit + 1, m});
    Graph graph = saved ? std::exchange(saved_[unit][m], Graph{})
                        : run_with_gradients(step, {unit, m}, std::move(x));
    graph.y.backward(dy);
    graph.y = torch::Tensor();
    dy = torch::Tensor();
    gradients_.begin_arrived_updates();
    if (unit == 0) continue;
    torch::Tensor dx = graph.x.grad();
    graph.x = torch::Tensor();
    resources_.inputs->put(unit, m, dx.contiguous());
  }
  send_gradients(step, unit);
  leave_stage(unit);
}

void StepRunner::run_pass(Step& step, const BetweenHook& between) {
  resources_.prefetcher->begin_pass(plan::step_stages(plan_.layouts));
  step.micro_batches = plan_.micro_batches_of(step.pass);
  const auto begin = Clock::now();
  for (std::size_t u = 0; u < last_; ++u) forward_unit(step, u);
  wait_to_time(step);
  step.forward_seconds += seconds_since(begin);
  if (step.pass == 0) {
    // The last unit's weights are updated last: once they are current, the step before has ended.
    finish_updates();
    if (between) between();
  }
  const auto begin_backward = Clock::now();
  last_unit(step);
  for (std::size_t u = last_; u-- > 0;) backward_unit(step, u);
  gradients_.finish_moves();
  wait_to_time(step);
  step.backward_seconds += seconds_since(begin_backward);
  resources_.prefetcher->end_pass();
  resources_.inputs->clear();
}

void StepRunner::wait_to_time(const Step& step) const {
  if (plan_.config.monitors.wall_clock_breakdown) (void)step.loss_sum.item<double>();
}

BackwardResult StepRunner::forward_backward(const models::Dataset& data, std::int64_t number,
                                            double loss_scale, const UpdateSettings& update,
                                            const BetweenHook& between) {
  gradients_.begin_step();
  resources_.updater->expect_updates();
  const torch::Device device = resources_.compute.where;
  Step step{
      .number = number,
      .batches = MicroBatches(plan_, data, seed_, number, device),
      .loss_scale = loss_scale,
      .update = update,
      .loss_sum = torch::zeros({}, torch::TensorOptions().dtype(torch::kFloat64).device(device))};
  for (; step.pass < plan_.passes(); ++step.pass) run_pass(step, between);
  const double loss_sum = step.loss_sum.item<double>();  // waits for the last work of the step
  timeline_.flush();
  BackwardResult result = result_of_backward(resources_, gradients_, loss_sum, loss_scale);
  result.forward_seconds = step.forward_seconds;
  result.backward_seconds = step.backward_seconds;
  return result;
}

void StepRunner::finish_updates() {
  gradients_.finish_updates(gather_stall_);
}

RunnerStalls StepRunner::stalls() const {
  RunnerStalls stalls{gather_stall_, resources_.inputs->get_stall_seconds(),
                      resources_.inputs->put_stall_seconds(), gradients_.stall_seconds()};
  stalls.gather.update_seconds += gradients_.update_stall_seconds();
  return stalls;
}

double StepRunner::evaluate_pass(const models::Dataset& data, std::uint64_t window_limit,
                                 std::uint64_t first, std::uint64_t count) {
  const torch::NoGradGuard no_grad;
  const auto rows = static_cast<std::uint64_t>(plan_.config.micro_batch_size);
  const auto ranks = static_cast<std::uint64_t>(plan_.config.world_size);
  const auto rank = static_cast<std::uint64_t>(plan_.config.rank);
  const std::uint64_t batches = (count + rows - 1) / rows;
  const auto batch = [&](std::uint64_t index) {
    const std::uint64_t begin = index * rows;
    const auto here = static_cast<std::int64_t>(std::min(rows, count - begin));
    return evaluation_batch(plan_, data, window_limit, first + begin, here,
                            resources_.compute.where);
  };
  resources_.prefetcher->begin_pass(plan::evaluation_stages(plan_.layouts));
  std::vector<double> losses(batches, 0.0);  // times their windows; of other ranks 0
  for (std::size_t u = 0; u <= last_; ++u) {
    enter_stage(u);
    const TraceSpan computing(compute_row_, "evaluate", plan_.layouts[u].name);
    for (std::uint64_t b = rank; b < batches; b += ranks) {
      const std::size_t m = b / ranks;  // of this rank
      torch::Tensor x = u == 0 ? batch(b).inputs : resources_.inputs->get(u, m, AfterGet::release);
      if (u == last_) {
        const torch::Tensor targets = batch(b).targets;
        losses[b] =
            modules_[u]->loss(x, targets).item<double>() * static_cast<double>(targets.size(0));
        continue;
      }
      torch::Tensor y = modules_[u]->forward(x, models::DropoutKey{});
      x = torch::Tensor();
      resources_.inputs->put(u + 1, m, std::move(y));
    }
    leave_stage(u);
  }
  resources_.prefetcher->end_pass();
  resources_.inputs->clear();
  // Summed in the order of the windows, so the ranks have the bits of one rank.
  resources_.communicator->all_reduce(losses, "losses of an evaluation");
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

std::optional<double> StepRunner::evaluate(
    const models::Dataset& data, std::uint64_t window_limit,
    const std::function<bool(std::uint64_t, std::uint64_t)>& progress) {
  const std::uint64_t total = data.eval_window_count(window_limit);
  const std::uint64_t per_pass = plan_.schedule.passes.each *
                                 static_cast<std::uint64_t>(plan_.config.micro_batch_size) *
                                 static_cast<std::uint64_t>(plan_.config.world_size);
  double loss_sum = 0;
  for (std::uint64_t first = 0; first < total; first += per_pass) {
    const std::uint64_t count = std::min(per_pass, total - first);
    loss_sum += evaluate_pass(data, window_limit, first, count);
    if (!progress(first + count, total) && first + count < total) return std::nullopt;
  }
  return loss_sum / static_cast<double>(total);
}

}  // namespace sluice::train
