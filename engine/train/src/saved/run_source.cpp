#include "saved/run_source.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>

#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "sluice/offload/swap_store.hpp"

namespace sluice::train {

namespace {

// The directory where all optimizer states may be committed: the optimizer's, otherwise the
// parameters' (where states spill to). Empty when the configuration names none.
std::string swap_directory(const config::TrainConfig& config, plan::Placement placement) {
  if (placement == plan::Placement::resident) return "";
  const std::string& own = config.zero.offload_optimizer.nvme_path;
  return own.empty() ? config.zero.offload_param.nvme_path : own;
}

bool same_layout(const std::vector<zero::UnitLayout>& a, const std::vector<zero::UnitLayout>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t u = 0; u < a.size(); ++u) {
    if (a[u].flat_count != b[u].flat_count || a[u].params.size() != b[u].params.size())
      return false;
    for (std::size_t p = 0; p < a[u].params.size(); ++p) {
      if (a[u].params[p].name != b[u].params[p].name ||
          a[u].params[p].shape != b[u].params[p].shape)
        return false;
    }
  }
  return true;
}

// Throws StorageError when the manifest's parts contradict each other: no run writes that.
void check_complete(const models::RunState& state, const offload::CommittedState& committed,
                    const std::string& path) {
  if (state.step != committed.step) {
    throw StorageError(path, "is of step " + std::to_string(committed.step) +
                                 ", but describes a run at step " + std::to_string(state.step));
  }
  for (const offload::ShardSpec& wanted :
       models::state_shards(state.units, state.format, state.world_size)) {
    const bool found = std::any_of(
        committed.shards.begin(), committed.shards.end(), [&](const offload::ShardSpec& shard) {
          return shard.name == wanted.name && shard.size_bytes == wanted.size_bytes;
        });
    if (!found) {
      throw StorageError(path, "has no shard \"" + wanted.name + "\" of " +
                                   std::to_string(wanted.size_bytes) + " bytes");
    }
  }
}

void refuse_existing(const std::string& directory, std::int64_t step) {
  throw StorageError(directory,
                     "holds a run that was committed at step " + std::to_string(step) +
                         ": to go on with it add --resume (in a loop of one's own: "
                         "EngineOptions::resume), to begin anew remove it (sluice nvme clean " +
                         directory + " --committed) or configure another directory");
}

void check_format(const models::RunState& saved, const plan::Plan& plan,
                  const std::string& directory) {
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

std::vector<zero::UnitLayout> stored_units(const plan::Plan& plan) {
  std::vector<zero::UnitLayout> stored;
  for (const zero::UnitLayout& layout : plan.layouts) {
    if (!layout.frozen) stored.push_back(layout);
  }
  return stored;
}

RunSource read_source(const std::string& directory) {
  RunSource source{.directory = directory, .own_swap = false, .state = std::nullopt};
  const offload::CommittedState committed = offload::SwapStore::read_committed(directory);
  source.state = models::parse_run_state(committed.metadata, directory + "/manifest.json");
  check_complete(*source.state, committed, directory + "/manifest.json");
  return source;
}

RunSource find_source(const config::TrainConfig& config, plan::Placement placement, Resume resume) {
  RunSource source;
  const std::string swap = swap_directory(config, placement);
  const std::string& checkpoints = config.sluice.checkpoints.directory;
  if (!swap.empty() && offload::SwapStore::holds_committed(swap)) {
    source.directory = swap;
    source.own_swap = true;
  } else if (!checkpoints.empty() && std::filesystem::is_directory(checkpoints)) {
    source.directory = models::newest_checkpoint(checkpoints);
  }
  // Throws and names the process if another run is active there.
  if (!checkpoints.empty() && std::filesystem::is_directory(checkpoints)) {
    const offload::DirectoryLock free(checkpoints, offload::DirectoryLock::Mode::shared);
  }
  if (source.directory.empty()) {
    if (resume == Resume::yes) {
      log(LogLevel::info, "--resume: nothing has been committed yet, the run begins at step 1");
    }
    return source;
  }
  if (resume == Resume::no) {
    const std::int64_t step = offload::SwapStore::read_committed(source.directory).step;
    const offload::DirectoryLock free(source.directory, offload::DirectoryLock::Mode::shared);
    refuse_existing(source.directory, step);
  }
  const bool own_swap = source.own_swap;
  source = read_source(source.directory);
  source.own_swap = own_swap;
  return source;
}

void check_source(const RunSource& source, const plan::Plan& plan, std::uint64_t seed) {
  if (!source.state) return;
  if (source.own_swap && !plan.states_all_on_nvme()) {
    throw StorageError(
        source.directory,
        "holds a run whose optimizer states are all on NVMe, but with this configuration they "
        "would not be: resume it with the \"offload_optimizer\" and budgets it was begun with; "
        "to move the states, let that run write a checkpoint (\"checkpoint_dir\", "
        "\"checkpoint_every\"), remove it here (sluice nvme clean " +
            source.directory + " --committed), and resume from the checkpoint");
  }
  const models::RunState& saved = *source.state;
  const std::string given = model_text(plan);
  if (saved.model != given) {
    throw StorageError(source.directory, "holds another model than --model describes\n  saved: " +
                                             saved.model + "\n  given: " + given);
  }
  if (!same_layout(saved.units, stored_units(plan))) {
    throw StorageError(
        source.directory,
        "holds parameters that are laid out otherwise (written by version " + saved.version + ")");
  }
  const std::string dtype(name_of(plan.compute_dtype));
  if (saved.compute_dtype != dtype) {
    throw StorageError(source.directory, "was trained in " + saved.compute_dtype +
                                             ", the configuration asks for " + dtype + ": set " +
                                             enabling(saved.compute_dtype));
  }
  check_format(saved, plan, source.directory);
  if (saved.seed != seed) {
    throw InvalidArgument("the run in " + source.directory + " was begun with seed " +
                          std::to_string(saved.seed) + ", not " + std::to_string(seed) +
                          ": resume it with --seed " + std::to_string(saved.seed));
  }
}

}  // namespace sluice::train
