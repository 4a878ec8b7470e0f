#include "run/run_setup.hpp"

#include <chrono>

#include "measure/unit_workspaces.hpp"
#include "run/run_settings.hpp"
#include "sluice/base/error.hpp"
#include "sluice/plan/make_plan.hpp"

namespace sluice::train {

namespace {

plan::Plan plan_run(const TrainRequest& request, const Configuration& loaded) {
  plan::MachineFacts machine = plan::probe_machine(loaded.train);
  if (machine.device.gpu)
    machine.device.workspaces = measure_workspaces(loaded.train, loaded.model, *machine.device.gpu);
  return plan::make_plan(loaded.train, loaded.model, request.placement, machine,
                         plan::rates_in(request.rates_path));
}

}  // namespace

RunSetup set_up_run(const TrainRequest& request, const volatile int& stop) {
  Configuration loaded = load_configuration(request);
  RunSetup setup;
  setup.identity.seed = loaded.train.sluice.seed = request.seed.value_or(loaded.train.sluice.seed);
  setup.data = open_data(request, loaded);
  setup.total_steps = total_steps(request, setup.data);
  check_schedule(loaded.train, setup.total_steps);
  check_directories(loaded.train, request.placement);
  setup.source =
      find_source(loaded.train, request.placement, request.resume ? Resume::yes : Resume::no,
                  setup.held, {std::chrono::seconds(request.wait_seconds), &stop});
  adopt_compute_threads(loaded.train, setup.source);
  adopt_state_format(loaded.train, setup.source);
  adopt_passes(loaded.train, setup.source);
  setup.plan = plan_run(request, loaded);
  check_source(setup.source, setup.plan, setup.identity.seed);
  setup.identity.settings = settings_of(request, setup.plan, setup.data);
  if (setup.source.state) {
    check_place_in_epochs(setup.source.state->settings, setup.identity.settings);
    compare_settings(setup.source.state->settings, setup.identity.settings,
                     setup.plan.config.sluice.strict);
  }
  return setup;
}

}  // namespace sluice::train
