#include "sluice/train/run_source.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <sstream>

#include "saved/rank_places.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/text.hpp"
#include "sluice/models/checkpoints.hpp"
#include "sluice/offload/checkpoint_folder.hpp"
#include "sluice/offload/swap_directory.hpp"
#include "sluice/offload/swap_store.hpp"

namespace sluice::train {

namespace {

std::string text_of(const zero::ParamLayout* param) {
  if (param == nullptr) return "none";
  return param->name + " (" + join(param->shape, ", ") + ")";
}

std::vector<const zero::ParamLayout*> params_of(const std::vector<zero::UnitLayout>& units) {
  std::vector<const zero::ParamLayout*> params;
  for (const zero::UnitLayout& unit : units)
    for (const zero::ParamLayout& param : unit.params) params.push_back(&param);
  return params;
}

// The first parameter in which the layouts differ; empty: in none. The padding behind parameters
// may differ: it depends on the number of ranks.
std::string find_difference(const std::vector<zero::UnitLayout>& saved,
                            const std::vector<zero::UnitLayout>& given) {
  const std::vector<const zero::ParamLayout*> a = params_of(saved);
  const std::vector<const zero::ParamLayout*> b = params_of(given);
  const auto at = [](const auto& params, std::size_t i) {
    return i < params.size() ? params[i] : nullptr;
  };
  for (std::size_t p = 0; p < std::max(a.size(), b.size()); ++p) {
    const std::string before = text_of(at(a, p));
    const std::string now = text_of(at(b, p));
    if (before != now)
      return "parameter " + std::to_string(p + 1) + " is " + before + " there, and " + now +
             " here";
  }
  const auto same_counts = [](const zero::UnitLayout& one, const zero::UnitLayout& other) {
    return one.params.size() == other.params.size();
  };
  return std::ranges::equal(saved, given, same_counts)
             ? ""
             : "units there have other numbers of parameters";
}

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

void check_format(const models::RunState& saved, const plan::Plan& plan,
                  const std::string& directory) {
  const cpu_adam::Rule kept = saved.format.rule;
  const cpu_adam::Rule wanted = plan.state_format.rule;
  if (kept != wanted) {
    throw StorageError(directory,
                       "holds the states of " + std::string(models::name_of(kept)) +
                           ", the configuration asks for " + std::string(models::name_of(wanted)) +
                           ": resume with the optimizer that the run was begun with; to take its "
                           "weights only, write them with \"sluice export " +
                           directory +
                           " --out FILE\" and begin another run with --init FILE (in "
                           "Python load_module_only=True)");
  }
  const auto check = [&](const char* key, auto was, auto asked) {
    if (was == asked) return;
    throw StorageError(
        directory, "keeps \"" + std::string(key) + "\" in " + std::string(config::name_of(was)) +
                       ", the configuration asks for " + std::string(config::name_of(asked)) +
                       ": leave the key out, and the run goes on as it was begun");
  };
  check("master", saved.format.master, plan.state_format.master);
  check("moments", saved.format.moments, plan.state_format.moments);
}

// Notes of the line of `source`, among `found`: the last order, and another checkpoint of this
// state or else of the one before.
void note_line(RunSource& source, const std::vector<models::Checkpoint>& found) {
  std::int64_t older_order = -1;
  for (const models::Checkpoint& each : found) {
    if (!each.damage.empty() || each.line != source.state->line) continue;
    source.last_order = std::max(source.last_order, each.order);
    if (each.path == source.directory || each.order > source.state->order) continue;
    if (each.order <= older_order) continue;
    older_order = each.order;
    source.older = each.path;
  }
}

RunSource source_of(models::SavedState saved) {
  RunSource source;
  source.directory = std::move(saved.directory);
  source.state = std::move(saved.state);
  source.metadata = std::move(saved.metadata);
  source.parts = std::move(saved.parts);
  source.last_order = source.state->order;
  return source;
}

// The state of the swap directory, or a checkpoint of its line that is newer. A swap directory is
// not committed after each step.
RunSource newest_of_line(RunSource swap, const std::string& checkpoints) {
  if (checkpoints.empty()) return swap;
  const std::vector<models::Checkpoint> found = models::list_checkpoints(checkpoints);
  models::Checkpoint own;
  own.path = swap.directory;
  own.step = swap.state->step;
  const models::Checkpoint* newest = &own;
  std::int64_t newest_order = swap.state->order;
  const models::Checkpoint* other = nullptr;
  for (const models::Checkpoint& each : found) {
    if (!each.damage.empty()) continue;
    if (each.line != swap.state->line) {
      other = &each;
    } else if (each.order > newest_order) {
      newest = &each;
      newest_order = each.order;
    }
  }
  models::check_none_damaged_after(found, newest);
  if (other != nullptr) {
    log(LogLevel::warn, other->path + " is a checkpoint of another run than that of " +
                            swap.directory + ": it is kept and not continued from");
  }
  RunSource source = newest == &own ? std::move(swap) : source_in(newest->path);
  note_line(source, found);
  return source;
}

// The state of the swap directory, if it holds one. The error of one that cannot be read names the
// checkpoint that is there beside it.
std::optional<RunSource> read_swap(const std::string& swap, const std::string& checkpoints) {
  try {
    if (swap.empty() || !models::holds_state(swap)) return {};
    return source_in(swap);
  } catch (const StorageError& error) {
    const std::string newest = checkpoints.empty() ? "" : models::newest_checkpoint(checkpoints);
    if (newest.empty()) throw;
    throw StorageError(swap, "cannot be continued from (" + std::string(error.what()) +
                                 "); the newest checkpoint is " + newest +
                                 ": to go on from there, clear the directory (sluice nvme clean " +
                                 swap + " --committed, which loses its state)");
  }
}

// Versions before ranks.json left states that are not of one step on all ranks.
void check_no_older_ranks(const std::string& directory) {
  std::error_code error;
  if (!std::filesystem::exists(directory + "/rank0/manifest.json", error)) return;
  throw StorageError(directory,
                     "holds states of several ranks that a version without ranks.json wrote: go on "
                     "with that version, or remove the folders rank0, rank1, ...");
}

std::optional<std::int64_t> number_in(const models::RunSettings& settings, const char* name) {
  const auto found = settings.find(name);
  return found == settings.end() ? std::nullopt : parse_number<std::int64_t>(found->second);
}

// The configuration keys that select `dtype`.
std::string enabling(const std::string& dtype) {
  if (dtype == "fp32") return R"("bf16" and "fp16" to {"enabled": false})";
  return "\"" + dtype + R"(": {"enabled": true} and no other type)";
}

// `error`: of a directory of which the system does not say whether it exists.
std::string advice_for(const std::error_code& error) {
  if (error == std::errc::permission_denied)
    return "this user must be allowed to enter the directories above it";
  if (error == std::errc::too_many_symbolic_link_levels || error == std::errc::filename_too_long)
    return "\"nvme_path\" must name an existing directory";
  return "its drive or its server fails: look at the kernel's log, and mount it again";
}

std::string advice_for_absent(Resume resume) {
  const std::string create = "create it on the drive to swap to";
  if (resume == Resume::no) return "\"nvme_path\" must name an existing directory: " + create;
  return "mount its drive; for a run that has not begun, " + create;
}

void check_directory(const std::string& directory, Resume resume) {
  std::error_code error;
  const auto status = std::filesystem::status(directory, error);
  if (status.type() == std::filesystem::file_type::none)
    throw IoError(error.value(), "swap directory", directory, 0, 0, advice_for(error));
  if (!std::filesystem::exists(status))
    throw IoError(ENOENT, "swap directory", directory, 0, 0, advice_for_absent(resume));
  if (!std::filesystem::is_directory(status))
    throw IoError(ENOTDIR, "swap directory", directory, 0, 0, advice_for_absent(Resume::no));
}

}  // namespace

void check_directories(const config::TrainConfig& config, plan::Placement placement,
                       Resume resume) {
  if (placement == plan::Placement::resident) return;
  for (const config::OffloadConfig* offload :
       {&config.zero.offload_optimizer, &config.zero.offload_param}) {
    for (const std::string& directory : offload->directories) check_directory(directory, resume);
  }
}

RunSource source_in(const std::string& directory) {
  RunSource source = source_of(models::read_state(directory));
  if (offload::checkpoint_folder_of(directory))
    note_line(source, models::list_checkpoints(parent_of(directory)));
  return source;
}

RunSource choose_source(const config::TrainConfig& config, plan::Placement placement) {
  const std::string swap = swap_directory(config, placement);
  const std::string& checkpoints = config.sluice.checkpoints.directory;
  RunSource source;
  if (!swap.empty()) check_no_older_ranks(swap);
  if (std::optional<RunSource> of_swap = read_swap(swap, checkpoints)) {
    const bool as_many = of_swap->state->world_size == config.world_size;
    source = newest_of_line(*std::move(of_swap), checkpoints);
    source.in_swap_directory = source.directory == swap;
    source.own_swap = as_many && source.in_swap_directory;
    source.swap_committed = as_many;
    source.swap_holds_state = true;
    return source;
  }
  if (!swap.empty()) {
    for (const offload::RankFolder& folder : offload::list_rank_folders(swap))
      check_is_leftover(folder.path);
  }
  if (!checkpoints.empty()) {
    const std::string newest = models::newest_checkpoint(checkpoints);
    if (!newest.empty()) source = source_in(newest);
  }
  return source;
}

void check_is_leftover(const std::string& folder) {
  if (!offload::SwapStore::holds_committed(folder)) return;
  const offload::CommittedState part = offload::SwapStore::read_committed(folder);
  if (part.durability == Durability::none) return;
  throw StorageError(folder,
                     "holds a rank's part of step " + std::to_string(part.step) +
                         ", and rank 0 finds no ranks.json beside it: put it back, or start "
                         "the ranks on the hosts that they had before; to begin anew, "
                         "remove it (sluice nvme clean " +
                         folder + " --committed)");
}

bool has_checkpoint(const std::string& directory, const std::string& line, std::int64_t step) {
  return std::ranges::any_of(models::list_checkpoints(directory), [&](const auto& each) {
    return each.damage.empty() && each.line == line && each.step == step;
  });
}

bool writes_checkpoints(const RunSource& source, std::int64_t total_steps,
                        const std::string& directory) {
  if (total_steps == 0) return false;
  return !source.state || source.state->step < total_steps ||
         !has_checkpoint(directory, source.state->line, source.state->step);
}

void log_nothing_to_resume(const config::TrainConfig& config, plan::Placement placement) {
  std::string places = swap_directory(config, placement);
  const std::string& checkpoints = config.sluice.checkpoints.directory;
  if (!checkpoints.empty()) places += (places.empty() ? "" : " or ") + checkpoints;
  const std::string why = places.empty() ? "the configuration names no directory of states"
                                         : "nothing has been committed yet in " + places;
  log(places.empty() ? LogLevel::warn : LogLevel::info,
      std::string(kResumeWords) + ": " + why + ": the run begins at step 1");
}

void adopt_compute_threads(config::TrainConfig& config, const RunSource& source) {
  if (!source.state) return;
  const int saved = source.state->compute_threads;
  std::optional<int>& asked = config.sluice.threads.compute;
  if (asked && *asked != saved) {
    const std::string line = "the run was begun with " + std::to_string(saved) +
                             " compute threads and goes on with " + std::to_string(*asked) +
                             ": losses may differ in their last bits";
    SLUICE_CHECK(!config.sluice.strict, "\"strict\": true does not allow: " + line);
    log(LogLevel::warn, line);
    return;
  }
  asked = saved;
}

void adopt_state_format(config::TrainConfig& config, const RunSource& source) {
  if (!source.state) return;
  config::SluiceConfig& sluice = config.sluice;
  if (!sluice.master) sluice.master = source.state->format.master;
  if (!sluice.moments) sluice.moments = source.state->format.moments;
}

void adopt_passes(config::TrainConfig& config, const RunSource& source) {
  config::SluiceConfig& sluice = config.sluice;
  if (!source.state || sluice.passes.each) return;
  const config::PassConfig saved{.each = number_in(source.state->settings, kMicroBatchesPerPass),
                                 .last = number_in(source.state->settings, kLastPass)};
  if (!saved.each) return;
  const std::int64_t last = saved.last.value_or(*saved.each);
  const bool computes_again = last > *saved.each;
  // The configuration has changed; compare_settings() says so.
  if (!saved.fit(config.gradient_accumulation_steps)) return;
  if (computes_again && sluice.activations == config::Activations::keep) return;
  sluice.passes = saved;
  if (*saved.each == config.gradient_accumulation_steps) return;
  log(LogLevel::info,
      "micro_batches_per_pass: " + std::to_string(*saved.each) +
          (computes_again ? ", " + std::to_string(last) + " in the last pass" : "") +
          ", as the run was begun");
}

void adopt_settings(config::TrainConfig& config, const RunSource& source) {
  adopt_compute_threads(config, source);
  adopt_state_format(config, source);
  adopt_passes(config, source);
}

std::string model_text(const plan::Plan& plan) {
  return plan.own_loop() ? "of a training loop of its own"
                         : config::canonical_model_text(plan.model);
}

std::string model_difference(const std::string& saved, const std::string& given) {
  std::istringstream saved_words(saved);
  std::istringstream given_words(given);
  std::string differences;
  std::string before;
  std::string now;
  while (saved_words >> before && given_words >> now) {
    const std::size_t end = before.find('=');
    const bool is_key = end != std::string::npos && now.starts_with(before.substr(0, end + 1));
    if (!is_key && before != now) return "";  // a model of another kind
    if (before == now) continue;
    differences += (differences.empty() ? ": " : ", ") + before.substr(0, end) + " (saved " +
                   before.substr(end + 1) + ", given " + now.substr(end + 1) + ")";
  }
  return differences;
}

std::vector<zero::UnitLayout> stored_units(const plan::Plan& plan) {
  std::vector<zero::UnitLayout> stored;
  for (const zero::UnitLayout& layout : plan.layouts) {
    if (!layout.frozen) stored.push_back(layout);
  }
  return stored;
}

void check_source(const RunSource& source, const plan::Plan& plan, std::uint64_t seed) {
  if (!source.state) return;
  if (source.swap_holds_state && !plan.states_all_on_nvme()) {
    const std::string swap =
        plan.config.world_size == 1
            ? swap_directory(plan.config, plan::Placement::configured)
            : parent_of(swap_directory(plan.config, plan::Placement::configured));
    throw StorageError(
        swap,
        "holds a run whose optimizer states are all on NVMe, but with this configuration they "
        "would not be: resume it with the \"offload_optimizer\" and budgets it was begun with; "
        "to move the states, let that run write a checkpoint (\"checkpoint_dir\", "
        "\"checkpoint_every\"), remove it here (sluice nvme clean " +
            swap + " --committed), and resume from the checkpoint");
  }
  const models::RunState& saved = *source.state;
  const std::string given = model_text(plan);
  if (saved.model != given) {
    throw StorageError(source.directory, "holds another model than --model describes" +
                                             model_difference(saved.model, given) +
                                             "\n  saved: " + saved.model + "\n  given: " + given);
  }
  if (const std::string other = find_difference(saved.units, stored_units(plan)); !other.empty())
    throw StorageError(source.directory, "holds another model: " + other);
  const std::string dtype(name_of(plan.compute_dtype));
  if (saved.compute_dtype != dtype) {
    throw StorageError(source.directory, "was trained in " + saved.compute_dtype +
                                             ", the configuration asks for " + dtype + ": set " +
                                             enabling(saved.compute_dtype) +
                                             "; or begin anew with its weights alone (sluice "
                                             "export and --init; in Python load_module_only=True)");
  }
  check_format(saved, plan, source.directory);
  if (saved.seed != seed) {
    throw InvalidArgument("the run in " + source.directory + " was begun with seed " +
                          std::to_string(saved.seed) + ", not " + std::to_string(seed) +
                          ": resume it with --seed " + std::to_string(saved.seed));
  }
}

}  // namespace sluice::train
