#include "run_source.hpp"

#include <filesystem>

#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"

namespace sluice::train {

namespace {

// The directory where all optimizer states may be committed; empty when they are not asked to be on
// NVMe.
std::string swap_directory(const TrainRequest& request, const config::TrainConfig& config) {
  if (request.placement == plan::Placement::resident) return "";
  const config::OffloadConfig& offload = config.zero.offload_optimizer;
  return offload.device == config::OffloadConfig::Device::nvme ? offload.nvme_path : "";
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

void refuse_existing(const std::string& directory, std::int64_t step) {
  throw StorageError(directory,
                     "holds a run that was committed at step " + std::to_string(step) +
                         ": add --resume to go on with it, or remove it (delete the directory's "
                         "contents) or configure another directory to begin anew");
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
  if (source.directory.empty()) {
    if (request.resume) {
      log(LogLevel::info, "--resume: nothing has been committed yet, the run begins at step 1");
    }
    return source;
  }
  const offload::CommittedState committed = offload::SwapStore::read_committed(source.directory);
  if (!request.resume) {
    // A run at work there is the news; this throws naming its process.
    const offload::DirectoryLock free(source.directory, offload::DirectoryLock::Mode::shared);
    refuse_existing(source.directory, committed.step);
  }
  source.state = models::parse_run_state(committed.metadata, source.directory + "/manifest.json");
  return source;
}

void check_source(const RunSource& source, const plan::Plan& plan, std::uint64_t seed) {
  if (!source.state) return;
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
  if (saved.seed != seed) {
    throw InvalidArgument("the run in " + source.directory + " was begun with seed " +
                          std::to_string(saved.seed) + ", not " + std::to_string(seed) +
                          ": resume it with --seed " + std::to_string(saved.seed));
  }
}

}  // namespace sluice::train
