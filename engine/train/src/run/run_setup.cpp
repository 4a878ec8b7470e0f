#include "run/run_setup.hpp"

#include <torch/version.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "ranks/same_inputs.hpp"
#include "ranks/shared_facts.hpp"
#include "record/line_file.hpp"
#include "run/run_settings.hpp"
#include "saved/checkpoint.hpp"
#include "saved/find_source.hpp"
#include "saved/rank_places.hpp"
#include "sluice/base/error.hpp"
#include "sluice/models/weight_reader.hpp"
#include "sluice/plan/make_plan.hpp"

namespace sluice::train {

namespace {

plan::Plan plan_run(const TrainRequest& request, RankGroup& ranks, const Configuration& loaded,
                    const RunSetup& setup, const StartedWork& started) {
  started("looking at the machine");
  plan::MachineFacts machine = shared_facts(ranks, loaded.train);
  if (machine.device.gpu) {
    models::UnitWorkspaces mine;
    ranks.together("measuring the units", [&] {
      mine = measure_workspaces(loaded.train, loaded.model, *machine.device.gpu, started);
    });
    machine.device.workspaces = largest_workspaces(ranks, mine);
  }
  ranks.together("looking for the last checkpoint", [&] {
    machine.writes_checkpoints = writes_checkpoints(setup.source, setup.total_steps,
                                                    loaded.train.sluice.checkpoints.directory);
  });
  started("planning");
  // Rates are of one process that has the machine to itself.
  const plan::FindRates rates =
      ranks.size() == 1 ? plan::rates_in(request.rates_path) : plan::FindRates();
  plan::Plan plan;
  ranks.together("the plan", [&] {
    plan = plan::make_plan(loaded.train, loaded.model, request.placement, machine, rates);
  });
  require_same_plan(ranks, plan);
  return plan;
}

// Wishes of the command line, beside files.
std::string asked_text(const TrainRequest& request, const RunSetup& setup) {
  const TrainRequest::Evaluation& evaluation = request.evaluation;
  return std::to_string(setup.identity.seed) + " " + std::to_string(setup.total_steps) + " " +
         std::to_string(request.epochs.value_or(0)) + (request.resume ? " resume " : " ") +
         std::to_string(static_cast<int>(request.placement)) + " " +
         std::to_string(evaluation.fraction.value_or(0)) + " " + std::to_string(evaluation.every) +
         " " + std::to_string(evaluation.windows);
}

void compare_inputs(const TrainRequest& request, RankGroup& ranks, const Configuration& loaded,
                    const RunSetup& setup, const std::string& weights) {
  if (ranks.size() == 1) return;
  std::string configuration = text_of_file(request.config_path);
  for (const std::string& tuned : request.tuned_paths) configuration += text_of_file(tuned);
  for (const config::Setting& setting : request.settings) {
    const bool of_request = setting.flag == "--steps" || setting.flag == "--epochs";
    if (!of_request)
      configuration += setting.key + "=" + setting.value + (setting.only_auto ? "?" : ";");
  }
  const Data& data = setup.data;
  require_same_inputs(
      ranks,
      {{"program (version and LibTorch)", std::string(SLUICE_VERSION) + TORCH_VERSION},
       {"configuration (--config and the flags that set its keys)", configuration},
       {"model (--model)", config::canonical_model_text(loaded.model)},
       {"training data (--data)", data.train ? data.train->identity() : ""},
       {"held-out data (--eval-data)", data.separate_eval ? data.separate_eval->identity() : ""},
       {"size of the initial weights (--init)", weights},
       {"request (seed, steps, epochs, --resume, --placement, evaluation)",
        asked_text(request, setup)}});
}

}  // namespace

RunSetup set_up_run(const TrainRequest& request, RankGroup& ranks, const std::atomic<int>& stop,
                    const StartedWork& started) {
  started("reading the files");
  Configuration loaded;
  RunSetup setup;
  std::string weights;
  const Resume resume = request.resume ? Resume::yes : Resume::no;
  ranks.together("reading the files of the run", [&] {
    loaded = load_configuration(request);
    setup.identity.seed = loaded.train.sluice.seed =
        request.seed.value_or(loaded.train.sluice.seed);
    setup.data = open_data(request, loaded);
    // A run that resumes reads none.
    if (request.init_path && !request.resume)
      weights = std::to_string(models::WeightReader(*request.init_path).file_bytes());
    setup.total_steps = total_steps(request, setup.data);
    check_schedule(loaded.train, setup.total_steps);
    check_directories(loaded.train, request.placement, resume);
  });
  compare_inputs(request, ranks, loaded, setup, weights);
  setup.source = find_source(loaded.train, request.placement, resume, setup.held, ranks.control(),
                             {std::chrono::seconds(request.wait_seconds), &stop});
  ranks.together("taking over the settings of the state", [&] {
    loaded.train = with_rank_folders(std::move(loaded.train), request.placement);
    adopt_settings(loaded.train, setup.source);
  });
  setup.plan = plan_run(request, ranks, loaded, setup, started);
  ranks.together("comparing the state with the configuration", [&] {
    if (!request.report_dir.empty()) check_can_write_lines(request.report_dir);
    check_source(setup.source, setup.plan, setup.identity.seed);
    setup.identity.settings = settings_of(request, setup.plan, setup.data);
    if (!setup.source.state) return;
    check_place_in_epochs(setup.source.state->settings, setup.identity.settings);
    // Rank 0 warns for all; with "strict" all end.
    const bool strict = setup.plan.config.sluice.strict;
    if (ranks.is_first() || strict)
      compare_settings(setup.source.state->settings, setup.identity.settings, strict);
  });
  return setup;
}

}  // namespace sluice::train
