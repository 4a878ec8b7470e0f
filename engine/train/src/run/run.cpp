#include "run/run.hpp"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ranks/rank_calls.hpp"
#include "ranks/rank_group.hpp"
#include "ranks/rank_numbers.hpp"
#include "record/memory_sampler.hpp"
#include "record/run_meter.hpp"
#include "record/run_trace.hpp"
#include "record/step_lines.hpp"
#include "run/data_check.hpp"
#include "run/initial_weights.hpp"
#include "run/run_report.hpp"
#include "run/run_settings.hpp"
#include "run/run_setup.hpp"
#include "saved/checkpoint.hpp"
#include "saved/swap_commit.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/rank_failure.hpp"
#include "sluice/base/threads.hpp"
#include "sluice/base/time/elapsed.hpp"
#include "sluice/base/written.hpp"
#include "sluice/config/lr_schedule.hpp"
#include "sluice/models/parallel_check.hpp"
#include "step/step_runner.hpp"

namespace sluice::train {

using Clock = std::chrono::steady_clock;

namespace {

std::unique_ptr<MemorySampler> make_sampler(const RunResources& resources) {
  const offload::MemoryPool& device = resources.device->memory();
  std::vector<const offload::MemoryPool*> host_pools = {resources.host_pool.get()};
  if (!resources.plan.device.gpu) host_pools.push_back(&device);
  return std::make_unique<MemorySampler>(std::move(host_pools), device);
}

// The steps of one `sluice train`, from allocation to report. Confined to the thread that trains.
class Run {
 public:
  Run(const TrainRequest& request, RankGroup& ranks, TrainObserver& observer,
      const std::atomic<int>& stop)
      : request_(request),
        ranks_(ranks),
        observer_(observer),
        stop_(stop),
        setup_(set_up(request, stop)) {}

  RunReport operator()() {
    try {
      return train();
    } catch (...) {
      const std::exception_ptr error = std::current_exception();
      end_ranks(zero::AbortReason(error));
      if (progress_.step > 0 || failure_kind(error) == FailureKind::storage)
        say_where_it_stopped(error);
      throw;
    }
  }

 private:
  RunSetup set_up(const TrainRequest& request, const std::atomic<int>& stop) const {
    const auto tell = [this](const std::string& work) { observer_.on_start(work, 0); };
    return set_up_run(request, ranks_, stop, tell);
  }

  // Before anything is destroyed: threads of this rank may wait for other ranks.
  void end_ranks(const zero::AbortReason& why) const {
    ranks_.abort(why);
    if (!resources_ || ranks_.size() == 1) return;
    resources_->communicator->abort(why);
    resources_->gather_communicator->abort(why);
  }

  RunReport train() {
    stop_at_start();
    tally_.start.plan = seconds_since(constructed_);
    auto begin = Clock::now();
    take_memory();
    tally_.start.memory = seconds_since(begin);
    begin = Clock::now();
    bring_in_states();
    tally_.start.states = seconds_since(begin);
    observer_.on_begin(progress_.step + 1, setup_.total_steps);
    agree_on_stop();
    while (progress_.step < setup_.total_steps && stopped() == 0) take_step();
    finish_pending();
    const bool took_steps = progress_.step > tally_.begun_from.step;
    const bool evaluates_only = setup_.total_steps == 0 || (!took_steps && stopped() == 0);
    if (setup_.total_steps > 0 && !took_steps && stopped() == 0) {
      settle_data(true);
      make_up_checkpoint(*resources_, *checkpoints_, progress_, setup_.identity);
    }
    if (setup_.data.has_eval && evaluates_only) evaluate();
    return finish();
  }

  // The error that follows names the cause.
  void say_where_it_stopped(const std::exception_ptr& error) {
    if (!lines_) return;  // training had not begun
    // With several ranks, some have left.
    if (ranks_.size() == 1)
      (void)error_of([this] { finish_checkpoint(*resources_, *checkpoints_, progress_); });
    log(LogLevel::error, "training stopped after step " + std::to_string(progress_.step) + "; " +
                             what_is_saved(*resources_, progress_.checkpoint_step));
    const std::string lost = what_may_be_lost(*resources_, progress_.checkpoint_step, error);
    if (!lost.empty()) log(LogLevel::error, lost);
  }

  // After a signal that came while the run was set up. No file is open yet.
  void stop_at_start() {
    agree_on_stop();
    if (stopped() != 0) throw Interrupted(stopped());
  }

  // A signal may reach some ranks only. They look for it at the same places, which are those where
  // a run of one rank looks too: a signal within a step ends the run after that step, and one
  // checkpoint is written.
  void agree_on_stop() { agreed_stop_ = ranks_.largest(stop_, "signals"); }
  int stopped() const { return agreed_stop_; }

  void take_memory() {
    const plan::Plan& plan = setup_.plan;
    observer_.on_plan(plan);
    observer_.on_start("taking memory", 0);
    RunDevice device;
    ranks_.together("taking the device", [&] {
      check_threads(plan.further_threads() + 2);  // and those of the data and of the trace
      const auto& resumed = setup_.source.state;
      trace_ = RunTrace(request_, 1 + (resumed ? resumed->step : 0));
      device = make_run_device(plan, trace_.trace());
    });
    RankLinks links = ranks_.take_links(*device.device, plan.device.has_nccl);
    ranks_.together("taking memory", [&] { allocate(device, links); });
  }

  // Takes `device` and `links` where nothing has failed before; the links end first.
  void allocate(RunDevice& device, RankLinks& links) {
    const plan::Plan& plan = setup_.plan;
    data_check_ = std::make_unique<DataCheck>(setup_.data);
    at::set_num_threads(plan.schedule.threads.compute);
    models::check_parallel_work();
    resources_ =
        std::make_unique<RunResources>(plan, start_of(setup_.source, setup_.held), trace_.trace(),
                                       std::move(device), std::move(links));
    call_log_ = make_call_log(plan.config);
    if (call_log_) {
      resources_->communicator->observe(call_log_->observer());
      resources_->gather_communicator->observe(call_log_->observer());
    }
    const std::vector<std::string>& choices = resources_->files.choices;
    setup_.plan.choices.insert(setup_.plan.choices.end(), choices.begin(), choices.end());
    observer_.on_choices(choices);
    sampler_ = make_sampler(*resources_);
    runner_ = std::make_unique<StepRunner>(*resources_, setup_.identity.seed);
    runner_->set_stage_hook([this] { sampler_->sample(); });
    meter_ = std::make_unique<RunMeter>(*resources_, *runner_);
    checkpoints_ = std::make_unique<CheckpointWriter>(*resources_);
  }

  void bring_in_states() {
    progress_.loss_scaler = LossScaler(setup_.plan.config.fp16);
    if (setup_.source.state) {
      observer_.on_start("states of step " + std::to_string(setup_.source.state->step), 0);
      restore_states(*resources_, setup_.source);
      commit_restored(*resources_, setup_.source);
      if (request_.init_path)
        log(LogLevel::warn, "--init " + *request_.init_path +
                                " is not read: the run is resumed with the weights it has");
      resume_progress(progress_, setup_.source, *resources_->communicator);
    } else {
      begin_progress(progress_, *resources_->communicator);
      const auto tell = [this](double done) { observer_.on_start("initial weights", done); };
      tell(0);
      initialise_states(*resources_, setup_.identity.seed, request_.init_path, tell);
    }
    tally_.begun_from = progress_;
    // A run that only evaluates leaves the monitors' files of the run before as they are.
    const bool monitored = setup_.total_steps > progress_.step && ranks_.is_first();
    const SamplesAxis axis =
        axis_behind(setup_.source.state ? &*setup_.source.state : nullptr, setup_.plan.config);
    note_axis(axis, setup_.plan.config, setup_.identity.settings);
    lines_ = std::make_unique<StepLines>(
        request_.report_dir, monitored ? setup_.plan.config.monitors : config::MonitorsConfig{},
        progress_.committed_step, axis);
    // A page of this directory would show the report of the run before as that of this run.
    if (!request_.report_dir.empty()) remove_file(request_.report_dir + "/report.json");
    const bool survives =
        resources_->commits_swap() || !setup_.plan.config.sluice.checkpoints.directory.empty();
    if (!survives && setup_.total_steps > progress_.step && ranks_.is_first()) {
      log(LogLevel::warn,
          "this run keeps no state that survives it: the optimizer states are not all on NVMe and "
          "\"sluice\": {\"checkpoint_dir\"} is not set");
    }
    meter_->start();
  }

  // Forward and backward of the next step, its end, and an evaluation if one is due. Its updates
  // may still run afterwards.
  void take_step() {
    const auto begin = Clock::now();
    const std::int64_t step = progress_.step + 1;
    const double commits_before = tally_.commit_seconds;
    trace_.begin_step(step);
    const UpdateSettings update = next_update(*resources_, progress_, ends_at(step));
    StepRecord record;
    record.step = step;
    record.ranks = ranks_.size();
    record.lr = update.learning_rate;
    record.loss_scale = progress_.loss_scaler.reported();
    const BackwardResult backward = forward_backward(step, update);
    record.loss = backward.loss;
    record.grad_norm = backward.gradient_norm;
    record.parts.forward_seconds = backward.forward_seconds;
    record.parts.backward_seconds = backward.backward_seconds;
    record.tokens = tokens_per_step();
    const StepEnd end = runner_->end_step(backward, update, progress_);
    if (!end.why_stop.empty()) stop_before_update(end.why_stop);
    record.skipped = !end.updated;
    meter_->end_backward();
    record.seconds = seconds_since(begin);
    record.commit_seconds = tally_.commit_seconds - commits_before;
    trace_.end_step(record, begin);
    pending_ = record;
    agree_on_stop();
    const bool last = step == setup_.total_steps;
    const bool due = request_.evaluation.every > 0 && step % request_.evaluation.every == 0;
    if (setup_.data.has_eval && (last || due)) {
      runner_->finish_updates();
      pending_->eval_loss = evaluate();  // none when a signal ends it
    }
    if (last || stopped() != 0) finish_pending();
  }

  BackwardResult forward_backward(std::int64_t step, const UpdateSettings& update) {
    return runner_->forward_backward(*setup_.data.train, step, progress_.loss_scaler.scale(),
                                     update, [this] { finish_pending(); });
  }

  std::uint64_t tokens_per_step() const {
    return static_cast<std::uint64_t>(setup_.plan.config.train_batch_size) *
           static_cast<std::uint64_t>(setup_.plan.model.n_positions);
  }

  // The weights are still those of the step before, which is committed here if it was not yet.
  [[noreturn]] void stop_before_update(const std::string& why) {
    finish_checkpoint(*resources_, *checkpoints_, progress_);
    if (progress_.committed_step < progress_.step) commit(/*ending=*/true);
    close_swap(*resources_);
    ranks_.stop_all(why);
  }

  std::optional<double> evaluate() {
    const TraceSpan span(trace_.evaluations(), "evaluate", {}, {"step", progress_.step});
    meter_->begin_evaluation();
    const std::optional<double> loss =
        runner_->evaluate(setup_.data.eval(), request_.evaluation.windows,
                          [this](std::uint64_t done, std::uint64_t total) {
                            observer_.on_eval_progress(done, total);
                            agree_on_stop();
                            return stopped() == 0;
                          });
    if (loss) tally_.eval_loss = loss;
    tally_.evaluation_cut = !loss;
    meter_->end_evaluation();
    return loss;
  }

  // Waits for the updates of the last step, writes its line and commits it. Does nothing when that
  // is done.
  void finish_pending() {
    runner_->finish_updates();
    if (!pending_) return;
    const auto begin = Clock::now();
    StepRecord record = *std::exchange(pending_, std::nullopt);
    meter_->end_updates(record);
    const offload::PoolUsage device = resources_->device->memory().usage();
    record.parts.device_bytes = device.live_bytes;
    record.parts.device_peak_bytes = device.peak_live_bytes;
    record.parts.device_held_bytes = device.held_bytes;
    lines_->append(record);
    commit(ends_at(record.step));
    tally_.add(record);
    observer_.on_step(record);
    tally_.commit_seconds += seconds_since(begin);
    trace_.end_commit(record.step, begin);
  }

  // Takes the verdict on the data: `waits`, or if it is there. Nothing is saved before.
  void settle_data(bool waits) {
    if (!data_check_ || !(waits || data_check_->done())) return;
    const std::unique_ptr<DataCheck> check = std::move(data_check_);
    models::RunSettings checksums = check->finish();
    models::RunSettings& settings = setup_.identity.settings;
    const bool strict = setup_.plan.config.sluice.strict;
    if (setup_.source.state && (ranks_.is_first() || strict))
      compare_checksums(setup_.source.state->settings, settings, checksums, strict);
    settings.merge(checksums);
  }

  void commit(bool ending) {
    settle_data(saves_step(*resources_, progress_.step, ending));
    if (saves_step_from_power_loss(*resources_, progress_.step, ending)) lines_->sync();
    commit_step(*resources_, *checkpoints_, progress_, setup_.identity, ending);
  }

  // True when no step follows.
  bool ends_at(std::int64_t step) const { return step == setup_.total_steps || stopped() != 0; }

  RunReport finish() {
    settle_data(true);
    finish_checkpoint(*resources_, *checkpoints_, progress_);
    close_swap(*resources_);
    const bool updated =
        progress_.step == tally_.begun_from.step || progress_.updates > tally_.begun_from.updates;
    if (!updated && ranks_.is_first()) {
      log(LogLevel::warn,
          "none of the steps changed the weights: in all of them the loss or a "
          "gradient was not finite; look at the data, the initial weights and lr");
    }
    sampler_->sample();
    const bool cut = progress_.step < setup_.total_steps || tally_.evaluation_cut;
    RunReport report =
        make_report({request_, setup_, *resources_, *meter_, *sampler_, tally_, progress_,
                     /*stopped_by_signal=*/cut ? stopped() : 0});
    report.ranks = gather_numbers(ranks_, meter_->numbers());
    if (call_log_) report.calls = gather_calls(ranks_, *call_log_);
    if (progress_.missed.count > 0) log(LogLevel::error, missed_text(progress_.missed));
    warn_of_slow_drive(report);
    lines_->finish();
    if (!request_.report_dir.empty())
      replace_file(request_.report_dir + "/report.json", to_json(report) + "\n", {.mode = 0644});
    return report;
  }

  const TrainRequest& request_;
  RankGroup& ranks_;
  TrainObserver& observer_;
  const std::atomic<int>& stop_;
  int agreed_stop_ = 0;  // the signal that all ranks end for
  const Clock::time_point constructed_ = Clock::now();
  RunSetup setup_;
  Progress progress_;
  RunTally tally_;
  std::optional<StepRecord> pending_;      // the last step, while its updates may run
  std::unique_ptr<DataCheck> data_check_;  // null after its verdict
  RunTrace trace_;
  std::unique_ptr<zero::CallLog> call_log_;  // null: none. The communicators of resources_ use it
  std::unique_ptr<RunResources> resources_;
  std::unique_ptr<MemorySampler> sampler_;
  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<RunMeter> meter_;
  std::unique_ptr<CheckpointWriter> checkpoints_;
  std::unique_ptr<StepLines> lines_;
};

// Rank 0 reports; every rank has a trace.
TrainRequest request_of_rank(TrainRequest request) {
  if (request.place.rank == 0) return request;
  request.report_dir.clear();
  if (!request.trace_path.empty())
    request.trace_path += ".rank" + std::to_string(request.place.rank);
  return request;
}

}  // namespace

RunReport run_training(const TrainRequest& request, TrainObserver& observer,
                       const std::atomic<int>& stop) {
  RankGroup ranks = join_ranks(request.place, stop);
  const TrainRequest own = request_of_rank(request);
  try {
    return Run(own, ranks, observer, stop)();
  } catch (...) {
    ranks.abort(zero::AbortReason(std::current_exception()));
    throw;
  }
}

}  // namespace sluice::train
