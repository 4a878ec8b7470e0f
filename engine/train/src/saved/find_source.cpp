#include "saved/find_source.hpp"

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "saved/checkpoint_directory.hpp"
#include "saved/draft.hpp"
#include "saved/rank_places.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"
#include "sluice/base/host_name.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/text.hpp"
#include "sluice/models/checkpoints.hpp"
#include "sluice/models/rank_commit.hpp"
#include "sluice/offload/checkpoint_folder.hpp"
#include "sluice/offload/swap_directory.hpp"
#include "sluice/offload/swap_store.hpp"

namespace sluice::train {

namespace {

namespace fs = std::filesystem;

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
  throw StorageError(found.directory, "holds a run that was committed at step " +
                                          std::to_string(found.state->step) +
                                          ". To go on with it, add " + std::string(kResumeWords) +
                                          ". To begin anew, remove all that is committed (" +
                                          lines + "), or configure another directory");
}

// Fields that go between ranks, beside numbers and parts. `state` follows from `metadata`.
constexpr bool RunSource::*kFlags[] = {&RunSource::own_swap, &RunSource::swap_committed,
                                       &RunSource::swap_holds_state, &RunSource::in_swap_directory};
constexpr std::string RunSource::*kTexts[] = {&RunSource::directory, &RunSource::metadata,
                                              &RunSource::older};

// The choice of rank 0, for the other ranks.
std::string text_of(const RunSource& source) {
  std::vector<std::string> texts{std::to_string(source.last_order)};
  for (const auto flag : kFlags) texts.emplace_back(source.*flag ? "1" : "");
  for (const auto text : kTexts) texts.push_back(source.*text);
  for (const models::SavedPart& part : source.parts) {
    texts.push_back(part.folder);
    texts.push_back(part.digest ? std::to_string(*part.digest) : "");
  }
  return models::pack_texts(texts);
}

RunSource parse_source(const std::string& text) {
  const std::vector<std::string> texts = models::unpack_texts(text);
  RunSource source;
  std::size_t i = 0;
  source.last_order = std::stoll(texts.at(i++));
  for (const auto flag : kFlags) source.*flag = !texts.at(i++).empty();
  for (const auto each : kTexts) source.*each = texts.at(i++);
  for (; i + 1 < texts.size(); i += 2) {
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
  return parse_source(models::do_on_first(ranks, directory, [&] { return text_of(choose()); }));
}

// The digests of the swap directory's parts, also when a checkpoint is continued from.
std::vector<std::string> committed_digests(const std::string& swap) {
  std::vector<std::string> digests;
  const auto ranks = offload::load_rank_manifest(swap);
  if (!ranks) return digests;
  for (const std::uint64_t digest : ranks->digests) digests.push_back(std::to_string(digest));
  return digests;
}

bool has_part(const std::string& folder, const std::string& digest) {
  const auto read = [&] { (void)offload::SwapStore::read_committed(folder, std::stoull(digest)); };
  return error_of(read) == nullptr;
}

// The ranks whose committed parts are here.
std::vector<int> ranks_here(const std::string& swap, const std::vector<std::string>& digests) {
  const auto ranks = static_cast<int>(digests.size());
  std::vector<int> found;
  for (int rank = 0; rank < ranks; ++rank) {
    if (has_part(offload::rank_folder(swap, rank, ranks), digests[static_cast<std::size_t>(rank)]))
      found.push_back(rank);
  }
  return found;
}

// A rank that is started on another host than before finds the parts of others, or none. Without
// `digests` nothing is committed.
void check_is_at_home(const std::string& swap, const std::vector<std::string>& digests, int rank) {
  if (digests.empty()) return;
  const std::string folder = offload::rank_folder(swap, rank, static_cast<int>(digests.size()));
  if (holds_states(folder)) return;  // settle_commit() says whether of this step
  std::string has = "no part of it";
  std::string ways =
      ", and mount their drives; where this one is lost, remove the run on every host (sluice nvme "
      "clean " +
      swap + " --committed) to start over, from the newest checkpoint if there is one";
  if (const std::vector<int> others = ranks_here(swap, digests); !others.empty()) {
    has = (others.size() == 1 ? "that of rank " : "those of ranks ") + join(others, ", ") + " of " +
          std::to_string(digests.size());
    ways = "; where this folder is lost, restore it from a copy, or go on from a checkpoint";
  }
  throw StorageError(
      folder, "does not hold this rank's part of the step that is committed on all ranks: " + swap +
                  " on host " + host_name() + " has " + has +
                  ". Start the ranks on the hosts that they had before" + ways);
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
  return chosen_on_first(ranks, directory, [&] { return source_in(models::find_run(directory)); });
}

RunSource find_source(const config::TrainConfig& config, plan::Placement placement, Resume resume,
                      offload::HeldDirectories& held, zero::Communicator& ranks,
                      const offload::LockWait& wait) {
  const std::string swap = swap_directory(config, placement);
  RunSource source = chosen_on_first(ranks, swap, [&] {
    const std::string& checkpoints = config.sluice.checkpoints.directory;
    if (!swap.empty()) held.hold(swap, wait);
    if (!checkpoints.empty()) hold_checkpoint_directory(checkpoints, held, wait);
    if (!swap.empty() && resume == Resume::yes)
      offload::follow_moved_drives(swap_place(config, placement), config.world_size);
    RunSource found = choose_source(config, placement);
    // Parts that as many ranks left are looked at when each rank opens its own.
    if (resume == Resume::yes && !found.own_swap) check_parts(found, config, placement);
    if (found.swap_holds_state) models::forget_superseded(swap);
    if (found.state && resume == Resume::no) refuse_existing(found, swap, checkpoints);
    if (!found.state && resume == Resume::yes) log_nothing_to_resume(config, placement);
    return found;
  });
  if (ranks.world_size() == 1) return source;
  const std::string& checkpoints = config.sluice.checkpoints.directory;
  if (!checkpoints.empty()) require_shared_directory(ranks, checkpoints);
  if (swap.empty()) return source;
  const std::vector<std::string> digests =
      models::unpack_texts(models::do_on_first(ranks, swap, [&] {
        return models::pack_texts(source.swap_committed ? committed_digests(swap)
                                                        : std::vector<std::string>());
      }));
  models::do_on_all(ranks, swap, [&] {
    check_is_at_home(swap, digests, ranks.rank());
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
