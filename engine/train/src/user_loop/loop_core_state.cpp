// LoopCore: construction, start, commits, checkpoints and counters. loop_core.cpp has the passes
// and steps.

#include <ATen/Parallel.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <utility>

#include "device/tensor_bytes.hpp"
#include "ranks/shared_facts.hpp"
#include "record/links.hpp"
#include "saved/checkpoint.hpp"
#include "saved/checkpoint_directory.hpp"
#include "saved/find_source.hpp"
#include "saved/rank_places.hpp"
#include "saved/saved_state.hpp"
#include "saved/swap_commit.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/rank_failure.hpp"
#include "sluice/base/threads.hpp"
#include "sluice/models/bound_params.hpp"
#include "sluice/models/parallel_check.hpp"
#include "sluice/models/rank_commit.hpp"
#include "sluice/models/vector_math.hpp"
#include "sluice/plan/make_plan.hpp"
#include "sluice/train/report.hpp"
#include "user_loop/loop_core.hpp"

namespace sluice::train {

using torch::Tensor;

namespace {

LinkBytes bytes_moved(const RunResources& resources) {
  LinkBytes bytes = bytes_of(resources.mover->bytes());
  add(bytes, bytes_of(resources.updater->counters()));
  return bytes;
}

}  // namespace

LoopCore::LoopCore(config::TrainConfig config, const EngineOptions& options, BroughtDevice device,
                   RankLinks ranks)
    : config_(std::move(config)),
      options_(options),
      device_(std::move(device)),
      ranks_(std::move(ranks)) {
  progress_.loss_scaler = LossScaler(config_.fp16);
  SLUICE_CHECK(config_.world_size == 1 || ranks_.communicator != nullptr,
               "an Engine trains with one rank");
}

LoopCore::~LoopCore() {
  if (!resources_) return;
  const c10::InferenceMode ordinary(false);
  units_.unbind_all();
}

plan::Placement LoopCore::placement() const {
  return options_.resident ? plan::Placement::resident : plan::Placement::configured;
}

plan::Plan LoopCore::make_plan() {
  plan::OwnModel model = units_.lay_out(config_.world_size);
  constexpr std::uint64_t kMostBytes = 1ULL << 60U;
  SLUICE_CHECK(options_.activation_bytes.value_or(0) <= kMostBytes,
               "EngineOptions::activation_bytes is " + std::to_string(*options_.activation_bytes) +
                   ", more than any device has; leave it empty where it is not known");
  model.activation_bytes = options_.activation_bytes;
  plan::MachineFacts facts = device_.facts(config_);
  zero::Communicator* const ranks = ranks_.communicator.get();
  if (ranks == nullptr || ranks->world_size() == 1)  // one rank, or a preview
    return plan::make_plan(config_, model, placement(), facts);
  share_gpu(facts, *ranks);
  take_least(facts, *ranks);
  plan::Plan plan = plan::make_plan(config_, model, placement(), facts);
  require_same_plan(*ranks, plan);
  return plan;
}

void LoopCore::preview() {
  SLUICE_CHECK(units_.layouts().empty(), "this loop has its units placed already");
  plan_ = make_plan();
  planned_ = true;
}

// Makes the plan; returns the state that the loop continues from.
RunSource LoopCore::plan_units() {
  const Resume resume = options_.resume ? Resume::yes : Resume::no;
  check_directories(config_, placement(), resume);
  if (!ranks_.communicator) ranks_.communicator = zero::make_single_rank();
  RunSource source = find_source(config_, placement(), resume, held_, *ranks_.communicator);
  config_ = with_rank_folders(std::move(config_), placement());
  adopt_compute_threads(config_, source);
  adopt_state_format(config_, source);
  plan_ = make_plan();
  check_source(source, plan_, source.state ? source.state->seed : 0);
  torch_dtype_ = sluice::train::torch_dtype(plan_.compute_dtype);
  if (options_.logs_steps)
    for (const std::string& note : config_.notes) log(LogLevel::info, note);
  return source;
}

void LoopCore::initialize() {
  SLUICE_CHECK(!resources_, "initialize() is called twice");
  SLUICE_CHECK(units_.layouts().empty(), "initialize() has failed before: make another Engine");
  const c10::InferenceMode ordinary(false);
  const RunSource source = plan_units();
  check_threads(plan_.further_threads());
  at::set_num_threads(plan_.schedule.threads.compute);
  models::check_parallel_work();
  models::settle_vector_math();
  resources_ = std::make_unique<RunResources>(plan_, start_of(source, held_), /*the_trace=*/nullptr,
                                              device_.make(plan_), std::move(ranks_));
  for (const std::string& choice : resources_->files.choices) {
    plan_.choices.push_back(choice);
    log(LogLevel::info, choice);
  }
  planned_ = true;
  units_.use_device(resources_->compute.where);
  try {
    bring_in_states(source);
  } catch (...) {
    resources_.reset();
    throw;
  }
  checkpoints_ = std::make_unique<CheckpointWriter>(*resources_);
  gradients_ = std::make_unique<GradientFlow>(*resources_);
  begin_step();
  order_ = std::make_unique<UnitOrder>(*resources_->prefetcher);
  accumulating_.assign(plan_.layouts.size(), 0);
  last_.step = saved_step_ = progress_.step;
  expected_micro_batches_ = config_.gradient_accumulation_steps;
  backwards_.assign(plan_.layouts.size(), 0);
  expected_backwards_ = plan_.own.backwards;
  resources_->device->memory().reset_peak();
  resources_->host_pool->reset_peak();
  before_ = bytes_moved(*resources_);
}

void LoopCore::bring_in_states(const RunSource& source) {
  std::vector<Ticket> fills(units_.layouts().size());
  if (source.state) {
    restore_states(*resources_, source);
    commit_restored(*resources_, source);
    resume_progress(progress_, source, *resources_->communicator);
  } else {
    begin_progress(progress_, *resources_->communicator);
  }
  begin_axis(source.state ? &*source.state : nullptr);
  const auto bring_in = [&](std::size_t l) {
    fills[l].finish();
    if (plan_.units[l].frozen) bring_in_frozen(l);
    units_.drop_values(l, torch_dtype_);
  };
  // Values on a GPU are copied to host memory, so those of one unit at a time.
  std::vector<std::size_t> begun;
  for (std::size_t l = 0; l < fills.size(); ++l) {
    const bool one_at_a_time = units_.has_values_on_gpu(l);
    if (!source.state && !plan_.units[l].frozen)
      fills[l] = resources_->updater->begin_initialise(l, units_.fill_of(l, shard_of(l).begin));
    if (one_at_a_time) {
      bring_in(l);
    } else {
      begun.push_back(l);
    }
  }
  for (const std::size_t l : begun) bring_in(l);
}

zero::ShardRange LoopCore::shard_of(std::size_t layout) const {
  return zero::shard_range(plan_.layouts[layout], config_.rank, config_.world_size);
}

// Writes this rank's part of a unit's weights to their home.
void LoopCore::store_shard(std::size_t layout, offload::DeviceSpan full) {
  const offload::TieredBytes& home = resources_->units[layout]->weights_home();
  const std::size_t element = size_of(plan_.compute_dtype);
  const zero::ShardRange range = shard_of(layout);
  const offload::DeviceSpan shard = full.subspan(range.begin * element, range.count * element);
  if (home.tier() != offload::Tier::device) {
    resources_->mover->begin_store(shard, home).finish();
    return;
  }
  const offload::DeviceSpan there = home.device_memory().first(shard.size_bytes());
  if (there.address() == shard.address()) return;
  const torch::Device where = resources_->compute.where;
  tensor_over(there, plan_.compute_dtype, where)
      .copy_(tensor_over(shard, plan_.compute_dtype, where));
}

void LoopCore::bring_in_frozen(std::size_t layout) {
  const zero::ShardedUnit& unit = *resources_->units[layout];
  const offload::TieredBytes& home = unit.weights_home();
  offload::Buffer buffer;
  offload::DeviceSpan memory;
  if (home.tier() == offload::Tier::device && config_.world_size == 1) {
    memory = home.device_memory().first(unit.full_bytes());
  } else {
    buffer = resources_->device->memory().allocate(unit.full_bytes(),
                                                   "weights of unit " + unit.layout().name);
    memory = buffer.device_span();
  }
  units_.write_values(layout, tensor_over(memory, plan_.compute_dtype, resources_->compute.where));
  store_shard(layout, memory);
}

// Waits for the updates of the last step and commits it. Does nothing when that is done.
void LoopCore::finish_step(bool ending) {
  gradients_->finish_updates(gather_stall_);
  if (updates_running_ || (ending && progress_.step > progress_.committed_step)) commit(ending);
  const std::int64_t step = progress_.step;
  if (options_.logs_steps && updates_running_ && config_.monitors.steps_per_print &&
      step % *config_.monitors.steps_per_print == 0) {
    log(LogLevel::info, "step " + std::to_string(step) + ": loss " + std::to_string(last_.loss) +
                            ", gradient norm " + std::to_string(last_.gradient_norm));
  }
  updates_running_ = false;
}

// Steps of a user's loop wait for a checkpoint that is due: the caller may look for it.
void LoopCore::commit(bool ending) {
  finish_moves();  // of a step that has not ended: as in save_checkpoint()
  commit_step(*resources_, *checkpoints_, progress_, identity_, ending);
  finish_checkpoint(*resources_, *checkpoints_, progress_);
}

void LoopCore::load_failed(const std::string& directory) {
  failed_load_ = directory;
}

// Updates of a step that backward began are in the states, which no commit has as that step.
void LoopCore::check_step_ended(const std::string& what) const {
  resources_->updater->check_updates();  // after one that has failed, step() would fail too
  SLUICE_CHECK(!gradients_->updates_begun(),
               what + " comes after step(): the backward of step " +
                   std::to_string(progress_.step + 1) +
                   " has updated units (optimizer_in_backward), and the step has not ended");
}

void LoopCore::finish() {
  if (is_updating_) half_updated_ = progress_.step + 1;  // its backward had an error
  // A step in part is neither committed nor written. Nothing is lost where nothing would be.
  const bool keeps = !options_.scratch || !config_.sluice.checkpoints.directory.empty();
  if (half_updated_ > 0 && !keeps) return gradients_->finish_updates(gather_stall_);
  check_whole();
  if (keeps) check_step_ended("the end of training");
  order_->pause();
  gradients_->updates_begun() ? gradients_->finish_updates(gather_stall_) : finish_step(true);
  // Reductions of a step that has not ended use the communicator of this thread.
  const std::exception_ptr lost = error_of([this] { finish_moves(); });
  if (!options_.scratch) close_swap(*resources_);
  if (lost) std::rethrow_exception(lost);
  const MissedCheckpoints missed = std::exchange(progress_.missed, {});
  if (missed.count > 0) {
    throw StorageError(config_.sluice.checkpoints.directory, missed_text(missed));
  }
  if (lines_) lines_->finish();
}

// A commit in scratch memory ends with the engine.
bool LoopCore::has_unsaved_steps() const {
  const std::int64_t own = options_.scratch ? progress_.checkpoint_step : progress_.committed_step;
  return progress_.step > std::max(saved_step_, own);
}

void LoopCore::save_checkpoint(const std::string& directory) {
  check_whole();
  check_step_ended("a checkpoint");
  order_->pause();
  finish_step(false);
  finish_moves();  // their reductions use the communicator of this thread
  offload::HeldDirectories held_now;
  models::do_on_first(*resources_->communicator, directory, [&] {
    if (!held_.holds(directory)) hold_checkpoint_directory(directory, held_now);
    return std::string();
  });
  const Progress before = progress_;
  write_checkpoint(*checkpoints_, progress_, identity_, directory);
  saved_step_ = progress_.step;
  if (is_own_checkpoint_dir(directory) && !resources_->commits_swap()) return;
  // No run resumes from a checkpoint elsewhere by itself, and states on NVMe are committed there:
  // finish() does that all the same.
  progress_.committed_step = before.committed_step;
  progress_.checkpoint_step = before.checkpoint_step;
}

// By the name alone, which all ranks have in common.
bool LoopCore::is_own_checkpoint_dir(const std::string& directory) const {
  const std::string& own = config_.sluice.checkpoints.directory;
  const auto normal = [](const std::string& path) {
    return (std::filesystem::path(path) / "").lexically_normal();
  };
  return !own.empty() && normal(own) == normal(directory);
}

// A rank's parts of an update may fail while those of the others succeed, and all ranks have to go
// on alike.
bool LoopCore::has_failed_update(const std::function<void()>& work) {
  zero::Communicator& ranks = *resources_->communicator;
  const std::exception_ptr own = error_of(work);
  const bool failed_here = own && resources_->updater->has_failed();
  const std::vector<std::string> failures = models::gather_texts(
      ranks, failed_here ? encode_failure(own) : "", "updates that have failed");
  const auto first = std::ranges::find_if_not(failures, &std::string::empty);
  if (first == failures.end()) {
    models::do_on_all(ranks, "", [&] {
      if (own) std::rethrow_exception(own);
    });
    return false;
  }
  if (own && !failed_here)
    log(LogLevel::warn, "beside the failed update of another rank: " + failure_text(own));
  log(LogLevel::warn,
      "replaced by a checkpoint: " +
          (failed_here
               ? failure_text(own)
               : decode_failure(*first, static_cast<int>(first - failures.begin())).what()));
  return true;
}

// The checkpoint replaces what an update that failed left; other failures are the caller's. After a
// load or an update that failed the weights and states are a mix, so no step is committed.
void LoopCore::end_step_before_load() {
  drop_step();
  bool is_mixed = has_failed_update([&] { gradients_->finish_updates(gather_stall_); });
  // A load may have failed here alone, as by a signal behind it.
  const std::string mixed = half_updated_ > 0 ? "a backward" : failed_load_;
  for (const std::string& failed :
       models::gather_texts(*resources_->communicator, mixed, "what has failed on the way"))
    is_mixed = is_mixed || !failed.empty();
  if (!is_mixed) has_failed_update([&] { finish_step(false); });
  updates_running_ = false;
}

void LoopCore::begin_axis(const models::RunState* resumed) {
  axis_ = axis_behind(resumed, config_);
  identity_.settings.clear();
  note_axis(axis_, config_, identity_.settings);
}

RunSource LoopCore::read_checkpoint(const std::string& directory) {
  SLUICE_CHECK(resources_ != nullptr, "call initialize() first");
  SLUICE_CHECK(!units_.any_shown(), "a checkpoint is loaded while a script sees gathered values");
  finish_moves();  // their reductions use the communicator of this thread
  RunSource source = read_source(directory, *resources_->communicator);
  check_source(source, plan_, source.state->seed);
  return source;
}

std::int64_t LoopCore::load_checkpoint(const RunSource& source) {
  end_step_before_load();
  bool begun = false;
  try {
    restore_states(*resources_, source, &begun);
  } catch (...) {
    if (begun) failed_load_ = source.directory;
    throw;
  }
  failed_load_.clear();
  half_updated_ = 0;
  loaded_from_ = source.directory;
  lines_.reset();
  ++weights_version_;
  resume_progress(progress_, source, *resources_->communicator);
  begin_axis(&*source.state);
  progress_.committed_step = -1;  // the directories of this run have another state
  last_ = StepResult();
  last_.step = saved_step_ = progress_.step;
  return progress_.step;
}

EngineCounters LoopCore::counters() const {
  SLUICE_CHECK(resources_ != nullptr, "call initialize() first");
  const LinkBytes moved = minus(bytes_moved(*resources_), before_);
  const SpeculativeCounters speculated = resources_->updater->counters().speculated;
  return {.h2d_bytes = moved.h2d,
          .d2h_bytes = moved.d2h,
          .nvme_read_bytes = moved.nvme_read,
          .nvme_written_bytes = moved.nvme_written,
          .update_stall_seconds = gather_stall_.update_seconds + gradients_->update_stall_seconds(),
          .fetch_stall_seconds = gather_stall_.fetch_seconds,
          .gradient_stall_seconds = gradients_->stall_seconds(),
          .speculative_updates_kept = speculated.kept,
          .speculative_updates_dropped = speculated.dropped,
          .speculative_dropped_seconds = speculated.dropped_seconds,
          .recomputed_calls = 0,
          .device_peak_bytes = resources_->device->memory().usage().peak_live_bytes,
          .host_peak_bytes = resources_->host_pool->usage().peak_live_bytes};
}

}  // namespace sluice::train
