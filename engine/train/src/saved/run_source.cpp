#include "saved/run_source.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <utility>

#include "saved/checkpoint_directory.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/models/checkpoints.hpp"
#include "sluice/offload/checkpoint_folder.hpp"
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

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
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
  RunSource source = newest == &own ? std::move(swap) : read_source(newest->path);
  note_line(source, found);
  return source;
}

void refuse_existing(const std::string& directory, std::int64_t step) {
  throw StorageError(
      directory,
      "holds a run that was committed at step " + std::to_string(step) +
          ": to go on with it add --resume (in a loop of one's own: "
          "EngineOptions::resume; in Python: resume=True), to begin anew remove it (sluice nvme "
          "clean " +
          directory + " --committed) or configure another directory");
}

void check_format(const models::RunState& saved, const plan::Plan& plan,
                  const std::string& directory) {
  const models::StateKind kept = saved.format.kind;
  const models::StateKind wanted = plan.state_format.kind;
  if (kept != wanted) {
    throw StorageError(directory,
                       "holds the states of " + std::string(models::name_of(kept)) +
                           ", the configuration asks for " + std::string(models::name_of(wanted)) +
                           ": resume with the optimizer that the run was begun with; to take its "
                           "weights only, write them with \"sluice export " +
                           directory + " --out FILE\" and begin another run with --init FILE");
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
                  "this user must be allowed to enter the directories above it");
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

std::vector<zero::UnitLayout> stored_units(const plan::Plan& plan) {
  std::vector<zero::UnitLayout> stored;
  for (const zero::UnitLayout& layout : plan.layouts) {
    if (!layout.frozen) stored.push_back(layout);
  }
  return stored;
}

RunSource read_source(const std::string& directory) {
  RunSource source;
  source.directory = directory;
  offload::CommittedState committed = offload::SwapStore::read_committed(directory);
  source.state = models::parse_run_state(committed.metadata, directory + "/manifest.json");
  check_complete(*source.state, committed, directory + "/manifest.json");
  source.metadata = std::move(committed.metadata);
  source.last_order = source.state->order;
  if (offload::checkpoint_folder_of(directory))
    note_line(source, models::list_checkpoints(parent_of(directory)));
  return source;
}

RunSource find_source(const config::TrainConfig& config, plan::Placement placement, Resume resume,
                      offload::HeldDirectories& held, const offload::LockWait& wait) {
  const std::string swap = swap_directory(config, placement);
  const std::string& checkpoints = config.sluice.checkpoints.directory;
  if (!swap.empty()) held.hold(swap, wait);
  if (!checkpoints.empty()) hold_checkpoint_directory(checkpoints, held, wait);
  const bool swap_committed = !swap.empty() && offload::SwapStore::holds_committed(swap);
  RunSource source;
  if (swap_committed) {
    source = newest_of_line(read_source(swap), checkpoints);
    source.own_swap = source.directory == swap;
  } else if (!checkpoints.empty()) {
    const std::string newest = models::newest_checkpoint(checkpoints);
    if (!newest.empty()) source = read_source(newest);
  }
  source.swap_committed = swap_committed;
  if (source.state && resume == Resume::no) refuse_existing(source.directory, source.state->step);
  if (!source.state && resume == Resume::yes)
    log(LogLevel::info, "--resume: nothing has been committed yet, the run begins at step 1");
  return source;
}

void check_source(const RunSource& source, const plan::Plan& plan, std::uint64_t seed) {
  if (!source.state) return;
  if (source.swap_committed && !plan.states_all_on_nvme()) {
    throw StorageError(
        swap_directory(plan.config, plan::Placement::configured),
        "holds a run whose optimizer states are all on NVMe, but with this configuration they "
        "would not be: resume it with the \"offload_optimizer\" and budgets it was begun with; "
        "to move the states, let that run write a checkpoint (\"checkpoint_dir\", "
        "\"checkpoint_every\"), remove it here (sluice nvme clean " +
            swap_directory(plan.config, plan::Placement::configured) +
            " --committed), and resume from the checkpoint");
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
