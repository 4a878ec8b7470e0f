#include "run_source.hpp"

#include <algorithm>
#include <filesystem>

#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"

namespace sluice::train {

namespace {

// The directory where all optimizer states may be committed: the optimizer's, else the parameters'
// (states that spill go there, as the plan has it). Empty when the configuration names none.
std::string swap_directory(const TrainRequest& request, const config::TrainConfig& config) {
  if (request.placement == plan::Placement::resident) return "";
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

// A manifest whose parts contradict each other was not written by a run.
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
                         ": add --resume to go on with it, or to begin anew remove it (sluice nvme "
                         "clean --committed) or configure another directory");
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

}  // namespace

RunSource find_source(const TrainRequest& request, const config::TrainConfig& config) {
  RunSource source;
  const std::string swap = swap_directory(request, config);
  const std::string& checkpoints = config.sluice.checkpoint_dir;
  if (!swap.empty() && offload::SwapStore::holds_committed(swap)) {
    source.directory = swap;
    source.own_swap = true;
  } else if (!checkpoints.empty() && std::filesystem::is_directory(checkpoints)) {
    source.directory = models::newest_checkpoint(checkpoints);
  }
  // A run at work there is the news; this throws naming its process.
  if (!checkpoints.empty() && std::filesystem::is_directory(checkpoints)) {
    const offload::DirectoryLock free(checkpoints, offload::DirectoryLock::Mode::shared);
  }
  if (source.directory.empty()) {
    if (request.resume) {
      log(LogLevel::info, "--resume: nothing has been committed yet, the run begins at step 1");
    }
    return source;
  }
  const offload::CommittedState committed = offload::SwapStore::read_committed(source.directory);
  if (!request.resume) {
    const offload::DirectoryLock free(source.directory, offload::DirectoryLock::Mode::shared);
    refuse_existing(source.directory, committed.step);
  }
  source.state = models::parse_run_state(committed.metadata, source.directory + "/manifest.json");
  check_complete(*source.state, committed, source.directory + "/manifest.json");
  return source;
}

void check_source(const RunSource& source, const plan::Plan& plan, std::uint64_t seed) {
  if (!source.state) return;
  if (source.own_swap && !plan.states_all_on_nvme()) {
    throw StorageError(
        source.directory,
        "holds a run whose optimizer states are all on NVMe, but with this configuration they "
        "would "
        "not be: resume it with the \"offload_optimizer\" and budgets it was begun with, or begin "
        "anew with \"sluice export\", --init and another directory");
  }
  const models::RunState& saved = *source.state;
  const std::string given = config::canonical_model_text(plan.model);
  if (saved.model != given) {
    throw StorageError(source.directory, "holds another model than --model describes\n  saved: " +
                                             saved.model + "\n  given: " + given);
  }
  if (!same_layout(saved.units, plan.layouts)) {
    throw StorageError(
        source.directory,
        "holds parameters that are laid out otherwise (written by version " + saved.version + ")");
  }
  const std::string dtype(name_of(plan.compute_dtype));
  if (saved.compute_dtype != dtype) {
    throw StorageError(source.directory,
                       "was trained in " + saved.compute_dtype + ", the configuration asks for " +
                           dtype + ": set \"bf16\": {\"enabled\": " +
                           (saved.compute_dtype == "bf16" ? "true" : "false") + "}");
  }
  check_format(saved, plan, source.directory);
  if (saved.seed != seed) {
    throw InvalidArgument("the run in " + source.directory + " was begun with seed " +
                          std::to_string(saved.seed) + ", not " + std::to_string(seed) +
                          ": resume it with --seed " + std::to_string(saved.seed));
  }
}

}  // namespace sluice::train
