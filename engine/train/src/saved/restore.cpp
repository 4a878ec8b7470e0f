// restore_states and commit_restored: states taken up from where a run continues.

#include <memory>
#include <vector>

#include "saved/checkpoint.hpp"
#include "saved/rank_places.hpp"
#include "saved/swap_commit.hpp"
#include "sluice/base/error.hpp"
#include "sluice/models/rank_commit.hpp"
#include "sluice/models/state_reader.hpp"
#include "sluice/offload/swap_store.hpp"

namespace sluice::train {

namespace {

// The manifest was read when the run chose this state; another process may have changed it since.
void check_unchanged(const offload::SwapStore& store, const RunSource& source) {
  // The text of rank 0; a rank's own part may be saved later.
  if (store.committed_step() == source.state->step &&
      (source.parts.size() > 1 || store.committed_metadata() == source.metadata))
    return;
  throw StorageError(source.directory,
                     "was changed by another process while it was read: it held "
                     "step " +
                         std::to_string(source.state->step) + ", and holds step " +
                         std::to_string(store.committed_step()) + " now");
}

// The swap directory of all ranks is locked by rank 0, for every rank. A rank that goes on from its
// own part reads no other, and others may lie on drives of other hosts.
void count_parts_as_held(const RunResources& resources, const RunSource& source,
                         offload::HeldDirectories& held) {
  models::do_on_all(*resources.communicator, source.directory, [&] {
    require_all_parts(source);
    for (const models::SavedPart& part : source.parts) held.count_as_held(part.folder);
  });
}

// The states of a source. Without a reader: those of the run's own swap directory.
struct OpenedSource {
  std::unique_ptr<nvme::IoEngine> io;
  std::unique_ptr<models::StateReader> reader;
};

// Finds what is missing, cut or of another state. Only reading finds bytes that have changed.
OpenedSource open_source(RunResources& resources, const RunSource& source,
                         const offload::HeldDirectories* held) {
  OpenedSource opened;
  if (source.own_swap) {
    check_unchanged(*resources.files.store, source);
    return opened;
  }
  std::string ignored;
  opened.io = make_io_engine(resources.plan, ignored, resources.trace);
  const models::SavedState place{.directory = source.directory,
                                 .state = *source.state,
                                 .metadata = source.metadata,
                                 .parts = source.parts};
  opened.reader = std::make_unique<models::StateReader>(place, *opened.io, held);
  return opened;
}

void restore_own_part(RunResources& resources, const models::StateReader* saved) {
  std::vector<Ticket> work;
  for (std::size_t u = 0; u < resources.units.size(); ++u) {
    if (resources.plan.units[u].frozen) continue;
    work.push_back(saved != nullptr ? resources.updater->begin_restore(u, *saved)
                                    : resources.updater->begin_restore(u));
  }
  finish_all(work);
}

}  // namespace

void restore_states(RunResources& resources, const RunSource& source, bool* begun) {
  offload::HeldDirectories held;
  if (source.in_swap_directory && !source.own_swap) count_parts_as_held(resources, source, held);
  settle_swap(resources);
  // A run that goes on from its own parts only reads them here.
  if (!source.own_swap) release_closed_parts(resources);
  OpenedSource opened;
  try {
    models::do_on_all(*resources.communicator, source.directory,
                      [&] { opened = open_source(resources, source, &held); });
    if (begun != nullptr) *begun = true;
    models::do_on_all(*resources.communicator, source.directory,
                      [&] { restore_own_part(resources, opened.reader.get()); });
  } catch (const StorageError& error) {
    if (source.older.empty()) throw;
    const std::string way = source.in_swap_directory
                                ? "clear it (sluice nvme clean " + source.directory +
                                      " --committed, which loses its state)"
                                : "move " + source.directory + " away";
    throw StorageError(source.directory, "cannot be continued from (" + std::string(error.what()) +
                                             "); the newest other checkpoint is " + source.older +
                                             ": to go on from there, " + way);
  }
  if (source.own_swap) release_closed_parts(resources);
}

void commit_restored(RunResources& resources, const RunSource& source) {
  if (!resources.commits_swap()) return;
  if (!source.own_swap) {
    models::RunState state = *source.state;
    state.world_size = resources.communicator->world_size();
    state.units = stored_units(resources.plan);
    commit_swap(resources, state);
  }
  // With one slot nothing is committed before the end.
  if (resources.files.store->durability() != Durability::none) remove_replaced_states(resources);
}

}  // namespace sluice::train
