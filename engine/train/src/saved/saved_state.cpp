#include "saved/saved_state.hpp"

#include <algorithm>
#include <chrono>

#include "sluice/base/log.hpp"
#include "sluice/base/random_id.hpp"
#include "sluice/base/text.hpp"
#include "sluice/models/rank_commit.hpp"

namespace sluice::train {

namespace {

std::int64_t nanoseconds_since_1970() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace

models::RunState make_run_state(const plan::Plan& plan, const Progress& progress,
                                const RunIdentity& identity) {
  return {.line = progress.line,
          .order = progress.order,
          .saved_at = nanoseconds_since_1970(),
          .model = model_text(plan),
          .units = stored_units(plan),
          .step = progress.step,
          .updates = progress.updates,
          .seed = identity.seed,
          .compute_dtype = std::string(name_of(plan.compute_dtype)),
          .loss_scale = progress.loss_scaler.state(),
          .format = plan.state_format,
          .compute_threads = plan.schedule.threads.compute,
          .world_size = plan.config.world_size,
          .version = SLUICE_VERSION,
          .settings = identity.settings};
}

void begin_progress(Progress& progress, zero::Communicator& ranks) {
  progress.line = models::broadcast_text(ranks, random_id(), "the line of a run");
  progress.order = 0;
}

void resume_progress(Progress& progress, const RunSource& source, zero::Communicator& ranks) {
  const std::string& line = source.state->line;
  progress.line =
      models::broadcast_text(ranks, line.empty() ? random_id() : line, "the line of a run");
  progress.order = std::max(progress.order, source.last_order);
  progress.step = progress.committed_step = source.state->step;
  progress.checkpoint_step = source.own_swap ? 0 : progress.step;
  progress.updates = source.state->updates;
  progress.loss_scaler.restore(source.state->loss_scale);
  log(LogLevel::info, "resumed from step " + std::to_string(progress.step) + " in " +
                          source.directory +
                          (source.state->world_size == ranks.world_size()
                               ? ""
                               : ", which " + counted(source.state->world_size, "rank") +
                                     " wrote, on " + std::to_string(ranks.world_size())));
}

}  // namespace sluice::train
