// plan: shows where every byte of a run would live; with known rates also the time of a step.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "command/commands.hpp"
#include "config/training_config.hpp"
#include "plan/known_rates.hpp"
#include "plan/ranks_plan.hpp"
#include "process/exit_code.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/text.hpp"
#include "sluice/config/lr_schedule.hpp"
#include "sluice/config/model_config.hpp"
#include "sluice/models/dataset.hpp"
#include "sluice/models/safetensors.hpp"
#include "sluice/plan/largest.hpp"
#include "sluice/plan/make_plan.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/plan/plan_text.hpp"
#include "sluice/plan/prediction.hpp"
#include "sluice/plan/storage_choices.hpp"
#include "sluice/train/run_data.hpp"
#include "sluice/train/run_source.hpp"
#include "train/run_files.hpp"

namespace sluice::cli {

namespace {

// Plans the model, or with --max the largest number of blocks of its shape that fits. Throws
// DoesNotFit, which says what is short, when the model or a single block does not fit.
plan::Plan plan_run(const PlanArguments& arguments, const config::TrainConfig& config,
                    config::ModelConfig model, const plan::MachineFacts& machine,
                    const plan::FindRates& find_rates) {
  const plan::Placement placement = arguments.request.placement;
  if (arguments.largest) {
    if (auto plan = plan::largest_plan(config, model, placement, machine, find_rates))
      return std::move(*plan);
    model.n_layer = 1;
  }
  try {
    return plan::make_plan(config, model, placement, machine, find_rates);
  } catch (const DoesNotFit& refusal) {
    if (!arguments.largest) throw;
    throw DoesNotFit(std::string("one block of this shape (n_layer 1) is too many already: ") +
                     refusal.what());
  }
}

// The state that train would go on from, whose settings `config` takes over; empty without
// --resume.
train::RunSource resumed_source(const train::TrainRequest& request, config::TrainConfig& config) {
  if (!request.resume) return {};
  train::check_directories(config, request.placement, train::Resume::yes);
  train::RunSource source = train::choose_source(config, request.placement);
  if (!source.state) train::log_nothing_to_resume(config, request.placement);
  train::check_parts(source, config, request.placement);
  train::adopt_settings(config, source);
  return source;
}

std::string resume_choice(const train::RunSource& source) {
  return "--resume: from step " + std::to_string(source.state->step) + " in " + source.directory +
         ", with the compute threads, formats of states and passes that the run was begun with, "
         "unless the configuration has others";
}

std::string largest_line(const config::ModelConfig& asked, const plan::Plan& plan) {
  if (plan.model.n_layer >= plan::kMostLayers)
    return "more blocks fit than a model may have: " + std::to_string(plan::kMostLayers) +
           " (n_layer; the file has " + std::to_string(asked.n_layer) + ")";
  return "the largest model of this shape that fits has " + std::to_string(plan.model.n_layer) +
         (plan.model.n_layer == 1 ? " block" : " blocks") + " (n_layer; the file has " +
         std::to_string(asked.n_layer) + ")";
}

// Parameters that memory alone holds, and with the drive of the configuration.
std::string line_of(const plan::LargestModel& model, bool only) {
  const std::string what =
      model.nvme_path.empty() ? "without NVMe: " : "with NVMe (" + model.nvme_path + "): ";
  const std::string size = model.layers == 0 ? "not one block fits"
                                             : format_count(model.parameters) + " parameters, " +
                                                   std::to_string(model.layers) + " blocks";
  return what + size +
         (only ? "; with NVMe: not known, because the configuration offloads nothing to it" : "");
}

void show_plan(const plan::Plan& plan, const config::TrainConfig& config,
               std::optional<std::int64_t> steps, Console& console) {
  for (const std::string& note : config.notes) console.print(note);
  console.print(plan::plan_table(plan));
  for (const std::string& choice : plan.choices) console.print("chosen: " + choice);
  if (steps && plan.traffic.nvme_written_bytes > 0) {
    const std::uint64_t written =
        checked_mul(plan.traffic.nvme_written_bytes, static_cast<std::uint64_t>(*steps));
    console.print("all " + format_count(static_cast<unsigned long long>(*steps)) + " steps write " +
                  format_bytes(written) + " to the drive");
  }
}

}  // namespace

int run_plan(const PlanArguments& arguments, Session& session) {
  if (!arguments.probe) require_rates(arguments.request);
  if (!arguments.ranks.ranks.empty()) return run_ranks_plan(arguments, session);
  train::TrainRequest request = arguments.request;
  require_files(request);
  set_steps_of_epochs(request);
  config::TrainConfig config = load_training_config(
      request.config_path, {.tuned_paths = request.tuned_paths, .settings = request.settings});
  const config::ModelConfig model = config::load_model_config(request.model_path);
  const std::optional<std::int64_t> steps = check_data(request, config, model);
  const std::string at_zero = config::steps_at_zero(config.scheduler, steps.value_or(0));
  if (!at_zero.empty()) log(LogLevel::warn, at_zero);
  const train::RunSource source = resumed_source(request, config);
  plan::MachineFacts machine = plan::probe_machine(config);
  machine.writes_checkpoints = train::writes_checkpoints(
      source, steps.value_or(train::kDefaultSteps), config.sluice.checkpoints.directory);
  KnownRates rates(request.rates_path);
  if (arguments.probe) rates.measure(plan_run(arguments, config, model, machine, {}), session);
  plan::Plan plan = plan_run(arguments, config, model, machine, rates.finder());
  if (source.state) {
    // The largest model is another one than that of the run.
    if (!arguments.largest)
      train::check_source(source, plan, request.seed.value_or(config.sluice.seed));
    plan.choices.push_back(resume_choice(source));
  }
  for (std::string& line : plan::storage_choices(plan)) plan.choices.push_back(std::move(line));
  Console& console = session.console();
  std::vector<plan::LargestModel> largest;
  if (arguments.largest) {
    console.print(largest_line(model, plan));
    if (request.placement == plan::Placement::configured)
      largest = plan::largest_models(config, model, machine);
    for (const plan::LargestModel& one : largest) console.print(line_of(one, largest.size() == 1));
  }
  show_plan(plan, config, steps, console);
  std::optional<plan::Prediction> prediction;
  if (const std::optional<plan::SavedRates> saved = rates.find(plan)) {
    prediction = plan::predict(plan, saved->rates);
    console.print("\n" + plan::prediction_text(*prediction, *saved));
  }
  session.emit_text(plan::plan_json(plan, prediction, largest));
  return kExitDone;
}

}  // namespace sluice::cli
