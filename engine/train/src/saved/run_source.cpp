#include "saved/run_source.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <sstream>

#include "saved/rank_places.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"

namespace sluice::train {

namespace {

std::string text_of(const zero::ParamLayout* param) {
  if (param == nullptr) return "none";
  std::string text;
  for (const std::int64_t size : param->shape)
    text += (text.empty() ? "" : ", ") + std::to_string(size);
  return param->name + " (" + text + ")";
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

// The configuration keys that select `dtype`.
std::string enabling(const std::string& dtype) {
  if (dtype == "fp32") return R"("bf16" and "fp16" to {"enabled": false})";
  return "\"" + dtype + R"(": {"enabled": true} and no other type)";
}

void check_directory(const std::string& directory) {
  std::error_code error;
  const auto status = std::filesystem::status(directory, error);
  const std::string advice =
      "\"nvme_path\" must name an existing directory: create it on the drive to swap to";
  if (status.type() == std::filesystem::file_type::none) {
    throw IoError(error.value(), "swap directory", directory, 0, 0,
                  error == std::errc::permission_denied
                      ? "this user must be allowed to enter the directories above it"
                      : advice);
  }
  if (!std::filesystem::exists(status))
    throw IoError(ENOENT, "swap directory", directory, 0, 0, advice);
  if (!std::filesystem::is_directory(status))
    throw IoError(ENOTDIR, "swap directory", directory, 0, 0, advice);
}

}  // namespace

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

void check_directories(const config::TrainConfig& config, plan::Placement placement) {
  if (placement == plan::Placement::resident) return;
  for (const config::OffloadConfig* offload :
       {&config.zero.offload_optimizer, &config.zero.offload_param}) {
    for (const std::string& directory : offload->directories()) check_directory(directory);
  }
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
