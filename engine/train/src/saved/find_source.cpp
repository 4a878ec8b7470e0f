// find_source and read_source: which state a run continues from.

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "saved/checkpoint_directory.hpp"
#include "saved/draft.hpp"
#include "saved/rank_places.hpp"
#include "saved/run_source.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/models/checkpoints.hpp"
#include "sluice/models/rank_commit.hpp"
#include "sluice/offload/checkpoint_folder.hpp"
#include "sluice/offload/swap_directory.hpp"
#include "sluice/offload/swap_store.hpp"

namespace sluice::train {

namespace {

namespace fs = std::filesystem;

std::string parent_of(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
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

RunSource source_of(models::SavedState saved) {
  RunSource source;
  source.directory = std::move(saved.directory);
  source.state = std::move(saved.state);
  source.metadata = std::move(saved.metadata);
  source.parts = std::move(saved.parts);
  source.last_order = source.state->order;
  return source;
}

RunSource read_found(const std::string& directory) {
  RunSource source = source_of(models::read_state(directory));
  if (offload::checkpoint_folder_of(directory))
    note_line(source, models::list_checkpoints(parent_of(directory)));
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
  RunSource source = newest == &own ? std::move(swap) : read_found(newest->path);
  note_line(source, found);
  return source;
}

// The state of the swap directory, if it holds one. The error of one that cannot be read names the
// checkpoint that is there beside it.
std::optional<RunSource> read_swap(const std::string& swap, const std::string& checkpoints) {
  try {
    if (swap.empty() || !models::holds_state(swap)) return {};
    models::forget_superseded(swap);
    return read_found(swap);
  } catch (const StorageError& error) {
    const std::string newest = checkpoints.empty() ? "" : models::newest_checkpoint(checkpoints);
    if (newest.empty()) throw;
    throw StorageError(swap, "cannot be continued from (" + std::string(error.what()) +
                                 "); the newest checkpoint is " + newest +
                                 ": to go on from there, clear the directory (sluice nvme clean " +
                                 swap + " --committed)");
  }
}

// Names all that a new run would find again: each directory may hold the run, and that of the
// checkpoints older steps too.
void refuse_existing(const RunSource& found, const std::string& swap,
                     const std::string& checkpoints) {
  std::string lines;
  const auto add = [&](const std::string& directory) {
    lines += (lines.empty() ? "" : "; ") + ("sluice nvme clean " + directory + " --committed");
  };
  if (found.swap_holds_state) add(swap);
  if (!checkpoints.empty() && !offload::list_checkpoint_folders(checkpoints).empty())
    add(checkpoints);
  throw StorageError(
      found.directory,
      "holds a run that was committed at step " + std::to_string(found.state->step) +
          ": to go on with it add --resume (in a loop of one's own: "
          "EngineOptions::resume; in Python: resume=True), to begin anew remove all that is "
          "committed (" +
          lines + ") or configure another directory");
}

// Versions before ranks.json left states that are not of one step on all ranks.
void check_no_older_ranks(const std::string& directory) {
  std::error_code error;
  if (!fs::exists(directory + "/rank0/manifest.json", error)) return;
  throw StorageError(directory,
                     "holds states of several ranks that a version without ranks.json wrote: go on "
                     "with that version, or remove the folders rank0, rank1, ...");
}

// Throws when the folder has a rank's committed part, while ranks.json is not where rank 0 looks:
// it is lost, or rank 0 runs on another host than before. With durability none, ranks.json goes
// when a run begins to write.
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

// On rank 0: locks what is of all ranks, and chooses.
RunSource choose_source(const config::TrainConfig& config, const std::string& swap,
                        offload::HeldDirectories& held, const offload::LockWait& wait) {
  const std::string& checkpoints = config.sluice.checkpoints.directory;
  if (!swap.empty()) held.hold(swap, wait);
  if (!checkpoints.empty()) hold_checkpoint_directory(checkpoints, held, wait);
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
    if (!newest.empty()) source = read_found(newest);
  }
  return source;
}

// The choice of rank 0, for the other ranks.
std::string text_of(const RunSource& source) {
  const auto flag = [](bool value) { return std::string(value ? "1" : ""); };
  std::vector<std::string> texts{source.directory,
                                 flag(source.own_swap),
                                 flag(source.swap_committed),
                                 flag(source.swap_holds_state),
                                 flag(source.in_swap_directory),
                                 source.metadata,
                                 source.older,
                                 std::to_string(source.last_order)};
  for (const models::SavedPart& part : source.parts) {
    texts.push_back(part.folder);
    texts.push_back(part.digest ? std::to_string(*part.digest) : "");
  }
  return models::pack_texts(texts);
}

RunSource source_in(const std::string& text) {
  const std::vector<std::string> texts = models::unpack_texts(text);
  RunSource source;
  source.directory = texts.at(0);
  source.own_swap = !texts.at(1).empty();
  source.swap_committed = !texts.at(2).empty();
  source.swap_holds_state = !texts.at(3).empty();
  source.in_swap_directory = !texts.at(4).empty();
  source.metadata = texts.at(5);
  source.older = texts.at(6);
  source.last_order = std::stoll(texts.at(7));
  for (std::size_t i = 8; i + 1 < texts.size(); i += 2) {
    source.parts.push_back(
        {texts[i], texts[i + 1].empty() ? std::nullopt
                                        : std::optional<std::uint64_t>(std::stoull(texts[i + 1]))});
  }
  if (!source.metadata.empty())
    source.state = models::parse_run_state(source.metadata, source.directory + "/manifest.json");
  return source;
}

// Runs `choose` on rank 0; its source, on every rank.
RunSource chosen_on_first(zero::Communicator& ranks, const std::string& directory,
                          const std::function<RunSource()>& choose) {
  return source_in(models::do_on_first(ranks, directory, [&] { return text_of(choose()); }));
}

// The digests of the swap directory's parts, also when a checkpoint is continued from.
std::vector<std::string> committed_digests(const std::string& swap) {
  std::vector<std::string> digests;
  const auto ranks = offload::load_rank_manifest(swap);
  if (!ranks) return digests;
  for (const std::uint64_t digest : ranks->digests) digests.push_back(std::to_string(digest));
  return digests;
}

// Makes and locks this rank's folder of the swap directory. Its part is then the committed one; or,
// when as many ranks have committed nothing there, the folder is empty.
void settle_rank_folder(const std::string& folder, const std::string& digest,
                        const RunSource& source, offload::HeldDirectories& held,
                        const offload::LockWait& wait) {
  make_folder(folder);
  if (digest.empty()) {
    if (!source.swap_holds_state) check_is_leftover(folder);
    // Rank 0 holds the directory, so no run is at work here.
    offload::clean_directory(folder, offload::CleanScope::everything, offload::CleanMode::remove);
    make_folder(folder);
  }
  held.hold(folder, wait);
  if (!digest.empty()) offload::SwapStore::settle_commit(folder, std::stoull(digest));
}

}  // namespace

RunSource read_source(const std::string& directory, zero::Communicator& ranks) {
  return chosen_on_first(ranks, directory, [&] { return read_found(models::find_run(directory)); });
}

RunSource find_source(const config::TrainConfig& config, plan::Placement placement, Resume resume,
                      offload::HeldDirectories& held, zero::Communicator& ranks,
                      const offload::LockWait& wait) {
  const std::string swap = swap_directory(config, placement);
  RunSource source = chosen_on_first(ranks, swap, [&] {
    RunSource found = choose_source(config, swap, held, wait);
    if (found.state && resume == Resume::no)
      refuse_existing(found, swap, config.sluice.checkpoints.directory);
    if (!found.state && resume == Resume::yes)
      log(LogLevel::info, "--resume: nothing has been committed yet, the run begins at step 1");
    return found;
  });
  if (ranks.world_size() == 1 || swap.empty()) return source;
  const std::vector<std::string> digests =
      models::unpack_texts(models::do_on_first(ranks, swap, [&] {
        return models::pack_texts(source.swap_committed ? committed_digests(swap)
                                                        : std::vector<std::string>());
      }));
  models::do_on_all(ranks, swap, [&] {
    settle_rank_folder(offload::rank_folder(swap, ranks.rank(), ranks.world_size()),
                       digests.empty() ? "" : digests.at(static_cast<std::size_t>(ranks.rank())),
                       source, held, wait);
  });
  return source;
}

RunSource find_source(const config::TrainConfig& config, plan::Placement placement, Resume resume,
                      offload::HeldDirectories& held, const offload::LockWait& wait) {
  const std::unique_ptr<zero::Communicator> one = zero::make_single_rank();
  return find_source(config, placement, resume, held, *one, wait);
}

}  // namespace sluice::train
