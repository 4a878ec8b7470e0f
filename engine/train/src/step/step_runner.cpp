#include "step/step_runner.hpp"

#include <cmath>
#include <limits>
#include <utility>

#include "device/tensor_bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/cpu_adam/optimizer.hpp"
#include "sluice/plan/stages.hpp"

namespace sluice::train {

using Keep = InputStore::Keep;

StepRunner::StepRunner(RunResources& resources, std::uint64_t seed)
    : resources_(resources),
      plan_(resources.plan),
      seed_(seed),
      micro_batches_(resources.plan.schedule.micro_batches_per_pass),
      last_(resources.plan.layouts.size() - 1),
      modules_(models::make_gpt2_modules(resources.plan.model,
                                         torch_dtype(resources.plan.compute_dtype),
                                         resources.compute.where)),
      gradients_(resources),
      compute_row_(resources.trace, "compute"),
      timeline_(*resources.device, resources.trace),
      kept_(last_) {
  for (std::size_t u = 0; u < last_; ++u) {
    if (plan_.units[u].activations_saved) kept_[u].resize(micro_batches_);
  }
}

// (B, T + 1) to inputs and targets.
StepRunner::Batch StepRunner::batch_of(const torch::Tensor& windows) const {
  const std::int64_t length = plan_.model.n_positions;
  return {windows.narrow(1, 0, length).contiguous(), windows.narrow(1, 1, length).contiguous()};
}

// Modules hold views of the resources' buffers.
StepRunner::~StepRunner() {
  for (const auto& module : modules_) module->unbind();
}

// (B, T + 1) int64, in host memory.
torch::Tensor StepRunner::draw_windows(const models::Dataset& data, std::int64_t step,
                                       std::size_t micro_batch) const {
  const std::int64_t rows = plan_.config.micro_batch_size;
  const std::int64_t length = plan_.model.n_positions;
  torch::Tensor windows = torch::empty({rows, length + 1}, torch::kInt64);
  for (std::int64_t row = 0; row < rows; ++row) {
    // Samples are numbered over micro-batches and ranks, so neither changes what a step trains on.
    const auto sample = static_cast<std::uint64_t>(micro_batch) * static_cast<std::uint64_t>(rows) +
                        static_cast<std::uint64_t>(row);
    data.draw(seed_, step, sample,
              {windows.data_ptr<std::int64_t>() + row * (length + 1),
               static_cast<std::size_t>(length + 1)});
  }
  return windows;
}

// All of a step's at once: a copy that is waited for would stop a GPU at every micro-batch.
void StepRunner::bring_tokens(const models::Dataset& data, std::int64_t step) {
  if (!plan_.device.gpu) return;
  std::vector<torch::Tensor> drawn;
  for (std::size_t m = 0; m < plan_.passes() * micro_batches_; ++m)
    drawn.push_back(draw_windows(data, step, m));
  tokens_ = torch::stack(drawn).to(resources_.compute.where);
}

StepRunner::Batch StepRunner::training_batch(const models::Dataset& data, std::int64_t step,
                                             std::size_t micro_batch) const {
  const torch::Tensor windows = tokens_.defined() ? tokens_[static_cast<std::int64_t>(micro_batch)]
                                                  : draw_windows(data, step, micro_batch);
  return batch_of(windows);
}

models::DropoutKey StepRunner::dropout_key(std::int64_t step, std::int64_t micro_batch) const {
  return {.training = true, .seed = seed_, .step = step, .micro_batch = micro_batch};
}

StepRunner::Span StepRunner::span(const char* what, std::size_t unit, std::int64_t step) {
  const std::string& name = plan_.layouts[unit].name;
  return {.issued = {compute_row_,
                     what,
                     name,
                     {"step", step},
                     {"micro_batches", static_cast<std::int64_t>(micro_batches_)}},
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
    return tensor_over(resources_.units[u]->gradients(), plan_.compute_dtype,
                       resources_.compute.where);
  };
  modules_[unit]->bind_gradients(plan_.layouts[unit], flat(unit), borrowed_views(unit, flat));
}

void StepRunner::enter_stage(std::size_t unit) {
  resources_.prefetcher->enter_stage(gather_stall_);
  bind(unit);
}

void StepRunner::leave_stage(std::size_t unit) {
  if (stage_hook_) stage_hook_();
  modules_[unit]->unbind();
  resources_.prefetcher->leave_stage();
}

torch::Tensor StepRunner::input_of(const models::Dataset& data, std::int64_t step, std::size_t unit,
                                   std::size_t micro_batch, Keep keep) {
  if (unit == 0) return training_batch(data, step, number_of(micro_batch)).inputs;
  return resources_.inputs->get(unit, micro_batch, keep);
}

// The graph refers to the module's parameters, not to the bytes that they are bound to now: those
// may be gone until backward binds others.
StepRunner::Graph StepRunner::run_with_gradients(std::size_t unit, torch::Tensor x,
                                                 std::int64_t step, std::size_t micro_batch) {
  Graph graph;
  graph.x = unit == 0 ? std::move(x) : x.detach().requires_grad_(true);
  graph.y = modules_[unit]->forward(
      graph.x, dropout_key(step, static_cast<std::int64_t>(number_of(micro_batch))));
  return graph;
}

void StepRunner::forward_unit(const models::Dataset& data, std::int64_t step, std::size_t unit) {
  const bool keep = plan_.units[unit].activations_saved;
  enter_stage(unit);
  const Span computing = span("forward", unit, step);
  for (std::size_t m = 0; m < micro_batches_; ++m) {
    torch::Tensor x = input_of(data, step, unit, m, Keep::yes);
    if (unit > 0 && plan_.config.sluice.overlap && m + 1 < micro_batches_)
      resources_.inputs->begin_get(unit, m + 1);
    torch::Tensor y;
    if (keep) {
      kept_[unit][m] = run_with_gradients(unit, std::move(x), step, m);
      y = kept_[unit][m].y.detach();
    } else {
      const torch::NoGradGuard no_grad;
      y = modules_[unit]->forward(x, dropout_key(step, static_cast<std::int64_t>(number_of(m))));
      x = torch::Tensor();
    }
    resources_.inputs->put(unit + 1, m, std::move(y));
  }
  leave_stage(unit);
}

void StepRunner::last_unit(const models::Dataset& data, std::int64_t step, double loss_scale) {
  enter_stage(last_);
  const Span computing = span("loss", last_, step);
  begin_gradients(last_);
  const double share = 1.0 / static_cast<double>(plan_.config.gradient_accumulation_steps);
  for (std::size_t m = 0; m < micro_batches_; ++m) {
    const Batch batch = training_batch(data, step, number_of(m));
    torch::Tensor x = resources_.inputs->get(last_, m, Keep::no);
    if (plan_.config.sluice.overlap && m + 1 < micro_batches_)
      resources_.inputs->begin_get(last_, m + 1);
    x = x.detach().requires_grad_(true);
    torch::Tensor loss = modules_[last_]->loss(x, batch.targets, share * loss_scale);
    loss_sum_.add_(loss.detach());
    loss.backward();
    loss = torch::Tensor();
    torch::Tensor gradient = x.grad();
    x = torch::Tensor();
    resources_.inputs->put(last_, m, gradient.contiguous());
  }
  // Reading it waits for all that was issued, so it is read here only where updates depend on it.
  if (at_once_ && is_last_pass() && std::isfinite(loss_sum_.item<double>()))
    gradients_.update_at_once(*at_once_);
  send_gradients(last_);
  leave_stage(last_);
}

// Of a pass that others follow they stay, and count in no norm yet.
void StepRunner::send_gradients(std::size_t unit) {
  if (is_last_pass()) {
    gradients_.send_unit(unit);
  } else {
    gradients_.keep_unit(unit);
  }
}

void StepRunner::backward_unit(const models::Dataset& data, std::int64_t step, std::size_t unit) {
  enter_stage(unit);
  const bool kept = plan_.units[unit].activations_saved;
  const Span computing = span(kept ? "backward" : "recompute+backward", unit, step);
  begin_gradients(unit);
  for (std::size_t m = 0; m < micro_batches_; ++m) {
    torch::Tensor x = kept ? torch::Tensor() : input_of(data, step, unit, m, Keep::no);
    torch::Tensor dy = resources_.inputs->get(unit + 1, m, Keep::no);
    if (plan_.config.sluice.overlap && m + 1 < micro_batches_) {
      if (unit > 0 && !kept) resources_.inputs->begin_get(unit, m + 1);
      resources_.inputs->begin_get(unit + 1, m + 1);
    }
    Graph graph = kept ? std::exchange(kept_[unit][m], Graph{})
                       : run_with_gradients(unit, std::move(x), step, m);
    graph.y.backward(dy);
    graph.y = torch::Tensor();
    dy = torch::Tensor();
    gradients_.begin_arrived_updates();
    if (unit == 0) continue;
    torch::Tensor dx = graph.x.grad();
    graph.x = torch::Tensor();
    resources_.inputs->put(unit, m, dx.contiguous());
  }
  send_gradients(unit);
  leave_stage(unit);
}

void StepRunner::run_pass(const models::Dataset& data, std::int64_t step, double loss_scale,
                          const BetweenHook& between) {
  resources_.prefetcher->begin_pass(plan::step_stages(plan_.layouts));
  for (std::size_t u = 0; u < last_; ++u) forward_unit(data, step, u);
  if (pass_ == 0) {
    // The last unit's weights are the last to be updated: once they are current, the step before
    // has ended.
    finish_updates();
    if (between) between();
  }
  last_unit(data, step, loss_scale);
  for (std::size_t u = last_; u-- > 0;) backward_unit(data, step, u);
  gradients_.end_step();
  resources_.prefetcher->end_pass();
  resources_.inputs->clear();
}

BackwardResult StepRunner::forward_backward(const models::Dataset& data, std::int64_t step,
                                            double loss_scale,
                                            const std::optional<UpdateSettings>& at_once,
                                            const BetweenHook& between) {
  gradients_.begin_step();
  resources_.updater->expect_updates();
  bring_tokens(data, step);
  at_once_ = at_once;
  loss_sum_ = torch::zeros(
      {}, torch::TensorOptions().dtype(torch::kFloat64).device(resources_.compute.where));
  for (pass_ = 0; pass_ < plan_.passes(); ++pass_) run_pass(data, step, loss_scale, between);

  BackwardResult result;
  const double share = 1.0 / static_cast<double>(plan_.config.gradient_accumulation_steps);
  result.loss = loss_sum_.item<double>() * share;  // waits for the last work of the step
  timeline_.flush();

  double totals[] = {gradients_.squared_norm(), gradients_.not_finite().empty() ? 0.0 : 1.0};
  resources_.communicator->all_reduce(totals);
  result.gradient_norm = std::sqrt(totals[0]) / loss_scale;
  if (!std::isfinite(result.loss)) {
    result.not_finite = "the loss";
  } else if (totals[1] != 0.0) {
    result.not_finite = "the gradient of " + gradients_.not_finite();
  }
  result.updates_begun = gradients_.updates_begun();
  result.tokens = static_cast<std::uint64_t>(plan_.config.train_batch_size) *
                  static_cast<std::uint64_t>(plan_.model.n_positions);
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
  const std::int64_t length = plan_.model.n_positions;
  const auto rows = static_cast<std::uint64_t>(plan_.config.micro_batch_size);
  const std::uint64_t batches = (count + rows - 1) / rows;
  const auto batch = [&](std::uint64_t index) {
    const std::uint64_t begin = index * rows;
    const auto here = static_cast<std::int64_t>(std::min(rows, count - begin));
    torch::Tensor windows = torch::empty({here, length + 1}, torch::kInt64);
    for (std::int64_t row = 0; row < here; ++row) {
      data.eval_window(first + begin + static_cast<std::uint64_t>(row), window_limit,
                       {windows.data_ptr<std::int64_t>() + row * (length + 1),
                        static_cast<std::size_t>(length + 1)});
    }
    return batch_of(windows.to(resources_.compute.where));
  };
  resources_.prefetcher->begin_pass(plan::evaluation_stages(plan_.layouts));
  double loss_sum = 0;
  for (std::size_t u = 0; u <= last_; ++u) {
    enter_stage(u);
    const TraceSpan computing(compute_row_, "evaluate", plan_.layouts[u].name);
    for (std::uint64_t m = 0; m < batches; ++m) {
      torch::Tensor x = u == 0 ? batch(m).inputs : resources_.inputs->get(u, m, Keep::no);
      if (u == last_) {
        const torch::Tensor targets = batch(m).targets;
        loss_sum +=
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
  return loss_sum;
}

std::optional<double> StepRunner::evaluate(
    const models::Dataset& data, std::uint64_t window_limit,
    const std::function<bool(std::uint64_t, std::uint64_t)>& progress) {
  const std::uint64_t total = data.eval_window_count(window_limit);
  const std::uint64_t per_pass =
      micro_batches_ * static_cast<std::uint64_t>(plan_.config.micro_batch_size);
  double loss_sum = 0;
  for (std::uint64_t first = 0; first < total; first += per_pass) {
    const std::uint64_t count = std::min(per_pass, total - first);
    loss_sum += evaluate_pass(data, window_limit, first, count);
    if (!progress(first + count, total) && first + count < total) return std::nullopt;
  }
  return loss_sum / static_cast<double>(total);
}

}  // namespace sluice::train
