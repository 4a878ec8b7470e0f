#include "run/run.hpp"

#include <torch/torch.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "measure/median.hpp"
#include "run/initial_weights.hpp"
#include "run/memory_sampler.hpp"
#include "run/run_inputs.hpp"
#include "run/run_meter.hpp"
#include "run/run_settings.hpp"
#include "run/run_trace.hpp"
#include "run/steps_file.hpp"
#include "saved/checkpoint.hpp"
#include "saved/run_source.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/config/lr_schedule.hpp"
#include "sluice/models/parallel_check.hpp"
#include "sluice/plan/make_plan.hpp"
#include "step/loss_scaler.hpp"
#include "step/run_resources.hpp"
#include "step/step_runner.hpp"

namespace sluice::train {

using Clock = std::chrono::steady_clock;

namespace {

constexpr std::int64_t kDefaultSteps = 1000;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string norms_by(const RunDevice& device) {
  if (!device.gpu) return "host";
  return device.gpu->has_kernels() ? "own kernel" : "LibTorch (built without nvcc)";
}

class Run {
 public:
  Run(const TrainRequest& request, TrainObserver& observer, const volatile int& stop)
      : request_(request), observer_(observer), stop_(stop) {}

  RunReport operator()() {
    prepare();
    bring_in_states();
    observer_.on_begin(step_ + 1, total_steps_);
    while (step_ < total_steps_ && stop_ == 0) take_step();
    finish_pending();
    if (total_steps_ == 0 || (step_ == first_step_ && data_.has_eval && stop_ == 0))
      evaluate_only();
    return finish();
  }

 private:
  void prepare() {
    Configuration loaded = load_configuration(request_);
    seed_ = loaded.train.sluice.seed = request_.seed.value_or(loaded.train.sluice.seed);
    total_steps_ = request_.steps.value_or(kDefaultSteps);
    SLUICE_CHECK(total_steps_ >= 0, "--steps must not be negative");
    SLUICE_CHECK(total_steps_ > 0 || request_.eval_data_path || request_.eval_fraction,
                 "--steps 0 evaluates only: it needs --eval-data or --eval-fraction");
    data_ = open_data(request_, loaded.model);
    check_directories(loaded.train, request_.placement);
    source_ = find_source(request_, loaded.train);
    keep_compute_threads(loaded.train, source_);
    keep_state_format(loaded.train, source_);
    keep_passes(loaded.train, source_);
    plan::MachineFacts machine = plan::probe_machine(loaded.train);
    if (machine.device.gpu)
      machine.device.workspaces =
          measure_workspaces(loaded.train, loaded.model, *machine.device.gpu);
    plan_ = plan::make_plan(loaded.train, loaded.model, request_.placement, machine,
                            plan::rates_in(request_.rates_path));
    check_source(source_, plan_, seed_);
    loss_scaler_ = LossScaler(plan_.config.fp16);
    settings_ = settings_of(request_, plan_.config, plan_.model, data_);
    settings_[kMicroBatchesPerPass] = std::to_string(plan_.schedule.micro_batches_per_pass);
    settings_["device"] = device_text(plan_);
    if (source_.state)
      compare_settings(source_.state->settings, settings_, plan_.config.sluice.strict);
    observer_.on_plan(plan_);
    at::set_num_threads(plan_.schedule.threads.compute);
    models::check_parallel_work();
    const std::string& checkpoints = plan_.config.sluice.checkpoints.directory;
    if (!checkpoints.empty()) checkpoint_lock_ = hold_checkpoint_directory(checkpoints);
    trace_ = RunTrace(request_);
    resources_ = std::make_unique<RunResources>(
        plan_, source_.own_swap ? SwapMode::open : SwapMode::create, trace_.trace());
    if (!resources_->io_choice.empty()) plan_.choices.push_back(resources_->io_choice);
    const offload::MemoryPool& device = resources_->device->memory();
    std::vector<const offload::MemoryPool*> host_pools = {resources_->host_pool.get()};
    if (!plan_.device.gpu) host_pools.push_back(&device);
    sampler_ = std::make_unique<MemorySampler>(std::move(host_pools), device);
    runner_ = std::make_unique<StepRunner>(*resources_, seed_);
    runner_->set_stage_hook([this] { sampler_->sample(); });
    meter_ = std::make_unique<RunMeter>(*resources_, *runner_);
  }

  void bring_in_states() {
    if (source_.state) {
      restore_states(*resources_, source_);
    } else {
      const InitialWeights initial(plan_, seed_, request_.init_path);
      std::vector<Ticket> work;
      for (std::size_t u = 0; u < plan_.layouts.size(); ++u)
        work.push_back(resources_->updater->begin_initialise(u, initial.fill_of(u)));
      finish_all(work);
    }
    if (source_.state) {
      if (request_.init_path)
        log(LogLevel::warn, "--init " + *request_.init_path +
                                " is not read: the run is resumed with the weights it has");
      step_ = source_.state->step;
      updates_ = source_.state->updates;
      loss_scaler_.restore(source_.state->loss_scale);
      log(LogLevel::info,
          "resumed from step " + std::to_string(step_) + " in " + source_.directory);
    }
    first_step_ = step_;
    updates_before_ = updates_;
    committed_step_ = source_.state ? step_ : 0;
    steps_file_ = std::make_unique<StepsFile>(request_.report_dir, committed_step_);
    if (!can_commit() && total_steps_ > step_) {
      log(LogLevel::warn,
          "this run keeps no state that survives it: the optimizer states are not all on NVMe and "
          "\"sluice\": {\"checkpoint_dir\"} is not set");
    }
    meter_->start();
  }

  bool can_commit() const {
    return (resources_->store && resources_->states_are_durable()) ||
           !plan_.config.sluice.checkpoints.directory.empty();
  }

  void take_step() {
    const auto begin = Clock::now();
    const std::int64_t step = step_ + 1;
    const double commits_before = commit_seconds_;
    trace_.begin_step(step);
    StepRecord record;
    record.step = step;
    record.lr = config::learning_rate(plan_.config, updates_ + 1);
    UpdateSettings update = settings_of_update(plan_.config, updates_ + 1);
    update.commits = commits_step(*resources_, step, ends_at(step));
    const double loss_scale = loss_scaler_.scale();
    const bool waits = plan_.config.updates_need_all_gradients();
    const BackwardResult result = runner_->forward_backward(
        *data_.train, step, loss_scale, waits ? std::nullopt : std::optional(update),
        [this] { finish_pending(); });
    record.loss = result.loss;
    record.grad_norm = result.gradient_norm;
    record.tokens = result.tokens;
    record.loss_scale = loss_scaler_.reported();
    record.skipped = !result.not_finite.empty();
    if (record.skipped) {
      runner_->drop_gradients();
      if (const auto stop = loss_scaler_.why_stop(plan_.config.sluice.non_finite))
        stop_before(step, result, *stop);
      log(LogLevel::warn, "step " + std::to_string(step) + ": " + result.not_finite +
                              " is not finite; no update" + loss_scaler_.overflowed());
    } else {
      ++updates_;
      loss_scaler_.updated();
      update.step.gradient_factor =
          gradient_factor(plan_.config.gradient_clipping, record.grad_norm, loss_scale);
      if (!result.updates_begun) runner_->begin_updates(update);
    }
    meter_->end_backward();
    step_ = step;
    record.seconds = seconds_since(begin);
    record.commit_seconds = commit_seconds_ - commits_before;
    trace_.end_step(record, begin);
    pending_ = record;
    const bool last = step_ == total_steps_;
    if (data_.has_eval && (last || (request_.eval_every > 0 && step_ % request_.eval_every == 0))) {
      runner_->finish_updates();
      pending_->eval_loss = evaluate();  // none when a signal ends it
    }
    if (last || stop_ != 0) finish_pending();
  }

  // The weights are those of the step before, which is committed here if it was not yet.
  [[noreturn]] void stop_before(std::int64_t step, const BackwardResult& result,
                                const LossScaler::Stop& why) {
    if (committed_step_ < step_) commit_step(*resources_, run_state(step_), /*ending=*/true);
    throw Error("step " + std::to_string(step) + ": " + result.not_finite + " is not finite, and " +
                why.reason + ": the run stopped before its update, at step " +
                std::to_string(step_) + "; " + why.advice);
  }

  std::optional<double> evaluate() {
    const TraceSpan span(trace_.evaluations(), "evaluate", {}, {"step", step_});
    meter_->begin_evaluation();
    const std::optional<double> loss = runner_->evaluate(
        data_.eval(), request_.eval_windows, [this](std::uint64_t done, std::uint64_t total) {
          observer_.on_eval_progress(done, total);
          return stop_ == 0;
        });
    if (loss) eval_loss_ = loss;
    evaluation_cut_ = !loss;
    meter_->end_evaluation();
    return loss;
  }

  // The state as it is, without a step: what --steps 0 is for, and a resumed run that has nothing
  // left to do.
  void evaluate_only() {
    if (data_.has_eval) evaluate();
  }

  // The step whose updates may still run: waits for them, writes its line, commits it.
  void finish_pending() {
    runner_->finish_updates();
    if (!pending_) return;
    const auto begin = Clock::now();
    StepRecord record = *std::exchange(pending_, std::nullopt);
    meter_->end_updates(record);
    steps_file_->append(record);
    if (commit_step(*resources_, run_state(record.step), ends_at(record.step)))
      committed_step_ = record.step;
    step_seconds_.push_back(record.seconds);
    tokens_ += record.tokens;
    last_loss_ = record.loss;
    last_bytes_ = record.bytes;
    observer_.on_step(record);
    commit_seconds_ += seconds_since(begin);
    trace_.end_commit(record.step, begin);
  }

  models::RunState run_state(std::int64_t step) const {
    return {.model = model_text(plan_),
            .units = stored_units(plan_),
            .step = step,
            .updates = updates_,
            .seed = seed_,
            .compute_dtype = std::string(name_of(plan_.compute_dtype)),
            .loss_scale = loss_scaler_.state(),
            .format = plan_.state_format,
            .compute_threads = plan_.schedule.threads.compute,
            .world_size = plan_.config.world_size,
            .version = SLUICE_VERSION,
            .settings = settings_};
  }

  // Whether no step follows.
  bool ends_at(std::int64_t step) const { return step == total_steps_ || stop_ != 0; }

  RunReport finish() {
    if (resources_->store && resources_->states_are_durable() && committed_step_ > 0) {
      resources_->store->close_cleanly();
    }
    if (step_ > first_step_ && updates_ == updates_before_) {
      log(LogLevel::warn,
          "none of the steps changed the weights: in all of them the loss or a "
          "gradient was not finite; look at the data, the initial weights and lr");
    }
    sampler_->sample();
    RunReport report;
    fill_report(report);
    warn_of_slow_drive(report);
    if (!request_.report_dir.empty())
      write_file(request_.report_dir + "/report.json", to_json(report) + "\n");
    return report;
  }

  void fill_report(RunReport& report) const {
    report.parameters = plan_.model_size.parameters;
    report.state_bytes = plan_.model_size.state_bytes;
    report.budget_bytes = {plan_.budget.device_bytes.value_or(0),
                           plan_.budget.host_bytes.value_or(0), 0};
    report.planned_bytes = plan_.planned.tiers;
    meter_->fill(report);
    report.runtime_planned_bytes = plan_.planned.runtime_bytes;
    report.runtime_peak_bytes = sampler_->runtime_peak_bytes();
    report.rss_peak_bytes = sampler_->resident_peak_bytes();
    report.device_gap_peak_bytes = sampler_->device_gap_peak_bytes();
    if (!step_seconds_.empty()) {
      const double sum = std::accumulate(step_seconds_.begin(), step_seconds_.end(), 0.0);
      report.tokens_per_second = static_cast<double>(tokens_) / sum;
      report.step_seconds = median(step_seconds_);
    }
    if (const auto saved = plan::load_rates(request_.rates_path, plan::rates_key(plan_)))
      report.predicted = plan::predict(plan_, saved->rates);
    report.planned_step_bytes = {plan_.traffic.h2d_bytes, plan_.traffic.d2h_bytes,
                                 plan_.traffic.nvme_read_bytes, plan_.traffic.nvme_written_bytes,
                                 plan_.traffic.nvme_cached_bytes};
    report.measured_step_bytes = last_bytes_;
    report.eval_loss = eval_loss_;
    report.last_loss = last_loss_;
    report.loss_scale = loss_scaler_.reported();
    report.last_step = step_;
    report.committed_step = committed_step_;
    report.choices = plan_.choices;
    report.versions = {
        {"sluice", SLUICE_VERSION},
        {"libtorch", TORCH_VERSION},
        {"adam_kernel", std::string(cpu_adam::kernel_in_use())},
        {"device", resources_->compute.gpu ? std::string(resources_->device->name()) : "host"},
        {"gpu_norms", norms_by(resources_->compute)},
        {"executor", std::string(resources_->executor->name())},
        {"io", resources_->io ? std::string(resources_->io->backend_name()) : "none"},
        {"compiler", __VERSION__}};
    report.commit = SLUICE_COMMIT;
    report.command_line = request_.command_line;
    report.stopped_by_signal = step_ < total_steps_ || evaluation_cut_ ? stop_ : 0;
  }

  const TrainRequest& request_;
  TrainObserver& observer_;
  const volatile int& stop_;
  std::uint64_t seed_ = 0;
  std::int64_t total_steps_ = 0;
  Data data_;
  RunSource source_;
  models::RunSettings settings_;
  plan::Plan plan_;
  LossScaler loss_scaler_;
  std::unique_ptr<offload::DirectoryLock> checkpoint_lock_;
  RunTrace trace_;
  std::unique_ptr<RunResources> resources_;
  std::unique_ptr<MemorySampler> sampler_;
  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<RunMeter> meter_;
  std::unique_ptr<StepsFile> steps_file_;
  std::int64_t first_step_ = 0;
  std::int64_t step_ = 0;            // steps taken
  std::int64_t updates_ = 0;         // of which updated the weights
  std::int64_t updates_before_ = 0;  // this run began
  std::int64_t committed_step_ = 0;
  double commit_seconds_ = 0;  // writing the lines of steps, and committing them
  std::optional<StepRecord> pending_;
  std::optional<double> eval_loss_;
  bool evaluation_cut_ = false;  // the last one, by a signal
  std::optional<double> last_loss_;
  LinkBytes last_bytes_;
  std::vector<double> step_seconds_;
  std::uint64_t tokens_ = 0;
};

}  // namespace

RunReport run_training(const TrainRequest& request, TrainObserver& observer,
                       const volatile int& stop) {
  return Run(request, observer, stop)();
}

}  // namespace sluice::train
