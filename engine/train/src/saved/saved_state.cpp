#include "saved/saved_state.hpp"

#include "sluice/base/log.hpp"

namespace sluice::train {

models::RunState make_run_state(const plan::Plan& plan, const Progress& progress,
                                const RunIdentity& identity) {
  return {.model = model_text(plan),
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

void resume_progress(Progress& progress, const RunSource& source) {
  progress.step = progress.committed_step = source.state->step;
  progress.updates = source.state->updates;
  progress.loss_scaler.restore(source.state->loss_scale);
  log(LogLevel::info,
      "resumed from step " + std::to_string(progress.step) + " in " + source.directory);
}

}  // namespace sluice::train
