#include "saved/swap_commit.hpp"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "saved/synced_path.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/rank_failure.hpp"
#include "sluice/base/text.hpp"
#include "sluice/base/written.hpp"
#include "sluice/models/rank_commit.hpp"
#include "sluice/offload/swap_directory.hpp"
#include "sluice/offload/swap_store.hpp"

namespace sluice::train {

namespace {

// The directory that holds this rank's store, or with several ranks all of their folders.
std::string directory_of_all(const RunResources& resources) {
  const std::string& own = resources.files.store->directory();
  return resources.communicator->world_size() == 1
             ? own
             : std::filesystem::path(own).parent_path().string();
}

// Whether somebody has removed or moved the swap directory. One that cannot be read now is there.
bool is_gone(const std::string& directory) {
  try {
    return !offload::SwapStore::holds_committed(directory);
  } catch (const IoError& error) {
    return error.code() == std::errc::no_such_file_or_directory ||
           error.code() == std::errc::not_a_directory;
  } catch (const std::exception&) {
    return false;
  }
}

// Why --resume cannot go on from the committed step, though the directory is there. Empty: nothing
// tells that it cannot.
std::string why_not_resumable(const offload::SwapStore& store) {
  try {
    store.check_committed();
  } catch (const StorageError& error) {
    return error.what();
  } catch (const std::exception&) {
  }
  return "";
}

// Where the committed bytes are that this rank knows of: what has to be kept together.
std::vector<std::string> committed_places(const RunResources& resources) {
  std::vector<std::string> places = resources.files.store->place().directories();
  places.front() = directory_of_all(resources);
  return places;
}

// fsync of the files and names in a directory. Those of another user are none of a store's.
void sync_files_in(const std::string& directory) {
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.is_regular_file() && ::access(entry.path().c_str(), R_OK) == 0)
      sync_path(entry.path());
  }
  sync_path(directory);
}

// Why the committed bytes may be in the system's memory alone; empty when they are on the drives.
// With Durability::power they were synced at the commit.
std::string sync_problem(const RunResources& resources) {
  const offload::SwapStore& store = *resources.files.store;
  if (store.durability() != Durability::process) return "";
  try {
    for (const std::string& directory : store.place().directories()) sync_files_in(directory);
    if (resources.communicator->world_size() > 1) sync_files_in(directory_of_all(resources));
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace

SwapStart start_of(const RunSource& source, const offload::HeldDirectories& held) {
  return {source.swap_committed ? SwapMode::open : SwapMode::create, &held};
}

void commit_swap(RunResources& resources, const models::RunState& state) {
  std::vector<Ticket> writes;
  // A failure here is one of all ranks: they would wait for this one in the commit.
  models::do_on_all(*resources.communicator, directory_of_all(resources), [&] {
    for (std::size_t u = 0; u < resources.units.size(); ++u)
      writes.push_back(resources.updater->begin_write_back(u));
    finish_all(writes);
  });
  models::commit_parts(*resources.files.store, *resources.communicator, directory_of_all(resources),
                       state.step, models::to_json(state));
}

void settle_swap(RunResources& resources) {
  zero::Communicator& ranks = *resources.communicator;
  if (!resources.commits_swap() || ranks.world_size() == 1) return;
  const Durability durability = resources.files.store->durability();
  const std::string directory = directory_of_all(resources);
  models::do_on_all(ranks, directory, [&] {
    resources.files.store->sync_committed();
    if (ranks.rank() == 0 && durability == Durability::power)
      offload::sync_rank_manifest(directory);
  });
}

void release_closed_parts(RunResources& resources) {
  zero::Communicator& ranks = *resources.communicator;
  if (!resources.commits_swap() || ranks.world_size() == 1 ||
      resources.files.store->durability() != Durability::none)
    return;
  models::release_parts(ranks, directory_of_all(resources));
}

void close_swap(RunResources& resources) {
  if (!resources.commits_swap() || resources.files.store->committed_step() == 0) return;
  models::close_parts(*resources.files.store, *resources.communicator, directory_of_all(resources));
  remove_replaced_states(resources);
}

void remove_replaced_states(RunResources& resources) {
  if (!resources.commits_swap() || resources.communicator->rank() != 0) return;
  try {
    offload::remove_other_states(directory_of_all(resources), resources.communicator->world_size());
  } catch (const std::exception& error) {
    log(LogLevel::warn,
        "the states of another number of ranks are left: " + std::string(error.what()));
  }
}

std::string what_is_saved(const RunResources& resources, std::int64_t checkpoint_step) {
  const offload::SwapStore* const store = resources.files.store.get();
  const std::int64_t swap_step = store == nullptr ? 0 : store->resumable_step();
  const std::string once_mended = ". Once the cause is mended, ";
  if (swap_step > checkpoint_step && is_gone(store->directory())) {
    const std::string otherwise =
        checkpoint_step > 0 ? "from the checkpoint of step " + std::to_string(checkpoint_step)
                            : "start again";
    return store->directory() + ", to which step " + std::to_string(swap_step) +
           " was committed, is gone" + once_mended +
           "--resume goes on from that step if the directory was moved and is put back; "
           "otherwise " +
           otherwise;
  }
  if (swap_step > checkpoint_step) {
    const std::string why_not = why_not_resumable(*store);
    if (!why_not.empty())
      return "step " + std::to_string(swap_step) +
             " was committed, and --resume cannot go on from it: " + why_not;
  }
  const std::int64_t step = std::max(swap_step, checkpoint_step);
  // This rank has written its part, and does not know whether the others heard of the commit.
  const auto prepared = store == nullptr ? std::nullopt : store->prepared_step();
  if (prepared && *prepared > step && step == 0)
    return "it is not known whether step " + std::to_string(*prepared) + " is committed" +
           once_mended + "--resume goes on from it, or else begins again";
  if (prepared && *prepared > step)
    return "step " + std::to_string(step) + " or " + std::to_string(*prepared) + " is committed" +
           once_mended + "--resume goes on from the one that is";
  if (step == 0) return "nothing is committed" + once_mended + "start again";
  return "step " + std::to_string(step) + " is committed" + once_mended +
         "--resume goes on from it";
}

std::string what_may_be_lost(const RunResources& resources, std::int64_t checkpoint_step,
                             const std::exception_ptr& error) {
  const offload::SwapStore* const store = resources.files.store.get();
  const std::int64_t step = store == nullptr ? 0 : store->resumable_step();
  if (step <= checkpoint_step || failure_kind(error) != FailureKind::storage) return "";
  if (store->prepared_step().value_or(step) > step || is_gone(store->directory()) ||
      !why_not_resumable(*store).empty())
    return "";
  const std::string problem = sync_problem(resources);
  if (problem.empty()) return "";
  const std::string otherwise = checkpoint_step > 0
                                    ? "it goes on from the checkpoint of step " +
                                          std::to_string(checkpoint_step) + " in another nvme_path"
                                    : "start again";
  return "step " + std::to_string(step) + " may not be on its drive (" + problem + "): copy " +
         join(committed_places(resources), " and ") +
         " before a file system is unmounted or the machine restarts. --resume goes on from it if "
         "it was kept; otherwise " +
         otherwise;
}

}  // namespace sluice::train
