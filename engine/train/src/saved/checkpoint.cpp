#include "saved/checkpoint.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "saved/checkpoint_directory.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/models/checkpoints.hpp"
#include "sluice/offload/checkpoint_folder.hpp"
#include "sluice/offload/swap_store.hpp"

namespace sluice::train {

namespace fs = std::filesystem;

namespace {

void sync_tree(const fs::path& directory) {
  for (const auto& entry : fs::directory_iterator(directory)) sync_path(entry.path());
  sync_path(directory);
}

// Removes a folder and the files in it as far as it can; returns the last error: that of the
// folder, which stays while a file does. std::filesystem::remove_all is not usable: libtorch.so of
// the wheel exports a version of it that calls a missing function, and a program that links
// libtorch.so gets that version.
std::error_code remove_folder(const fs::path& path) {
  std::error_code error;
  std::vector<fs::path> files;
  for (auto entry = fs::directory_iterator(path, error);
       !error && entry != fs::directory_iterator(); entry.increment(error))
    files.push_back(entry->path());
  for (const fs::path& file : files) fs::remove(file, error);
  fs::remove(path, error);
  return error;
}

// Removes the manifest first, so that a kill in between leaves nothing that looks like a
// checkpoint.
void remove_checkpoint(const fs::path& path) {
  fs::remove(path / "manifest.json");
  if (const std::error_code error = remove_folder(path); error)
    throw fs::filesystem_error("cannot remove", path, error);
}

// A checkpoint that is not needed any more and cannot be removed costs space, not data.
void try_remove_checkpoint(const std::string& path) {
  try {
    remove_checkpoint(path);
  } catch (const fs::filesystem_error& error) {
    log(LogLevel::warn, "an old checkpoint is left: " + std::string(error.what()));
  }
}

using Checkpoints = std::vector<models::Checkpoint>;

// Those of `line` in `directory`, oldest first. Those that cannot be read belong to no line.
Checkpoints checkpoints_of_line(const std::string& directory, const std::string& line) {
  Checkpoints found = models::list_checkpoints(directory);
  std::erase_if(found, [&](const models::Checkpoint& each) {
    return !each.damage.empty() || each.line != line;
  });
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.order < b.order; });
  return found;
}

// The next state is the newest of its line in the folder, also when a run returned to an earlier
// step in between.
void raise_order(Progress& progress, const Checkpoints& before) {
  for (const models::Checkpoint& each : before) {
    const bool same_state = each.order == progress.order && each.step == progress.step;
    if (each.order >= progress.order && !same_state) progress.order = each.order + 1;
  }
}

// Fills the folder `draft`, which must be empty, and syncs it.
void write_draft(RunResources& resources, const models::RunState& state, const fs::path& draft) {
  std::string ignored;
  // The checkpoint gets an I/O engine of its own, so it does not queue behind the run's reads.
  const auto io = make_io_engine(resources.plan, ignored, resources.trace);
  const auto store = offload::SwapStore::create(
      draft.string(), *io, models::state_shards(state.units, state.format, state.world_size),
      offload::Durability::none, nvme::DirectIo::automatic);
  std::vector<Ticket> copies;
  for (std::size_t u = 0; u < resources.units.size(); ++u) {
    if (!resources.plan.units[u].frozen)
      copies.push_back(resources.updater->begin_copy_to(u, *store));
  }
  finish_all(copies);
  store->commit(state.step, models::to_json(state));
  store->close_cleanly();
  // Whatever "durability" says: older checkpoints are removed next, which loss of power spares.
  sync_tree(draft);
}

void rename_folder(const fs::path& from, const fs::path& to) {
  SLUICE_SYSCALL(::rename(from.c_str(), to.c_str()), to.string());
  sync_path(to.parent_path());
}

// Removes what the checkpoint at `path` replaces: `before` are those of its line. Errors are lines
// in the log, because the checkpoint is whole.
// Returns where the checkpoint is then.
std::string remove_replaced(const Checkpoints& before, const Progress& progress,
                            const std::string& path, std::int64_t keep) {
  Checkpoints others;
  for (const models::Checkpoint& each : before) {
    if (each.step == progress.step) {
      try_remove_checkpoint(each.path);
    } else {
      others.push_back(each);
    }
  }
  const auto kept = static_cast<std::size_t>(keep - 1);  // beside the one at `path`
  for (std::size_t i = 0; i + kept < others.size(); ++i) try_remove_checkpoint(others[i].path);
  std::string plain = offload::checkpoint_path(fs::path(path).parent_path(), progress.step);
  std::error_code error;
  if (path == plain || fs::exists(fs::symlink_status(plain, error))) return path;
  try {
    rename_folder(path, plain);
  } catch (const IoError& problem) {
    log(LogLevel::warn, std::string("a checkpoint keeps a name of its own: ") + problem.what());
    return path;
  }
  return plain;
}

void try_checkpoint(RunResources& resources, Progress& progress, const RunIdentity& identity) {
  const config::SluiceConfig& options = resources.plan.config.sluice;
  const auto missed = [&](const std::string& why) {
    if (options.strict) throw;
    ++progress.missed.count;
    progress.missed.last_problem =
        "the checkpoint of step " + std::to_string(progress.step) + " is missing: " + why;
    log(LogLevel::error, progress.missed.last_problem + "; training goes on");
  };
  try {
    write_checkpoint(resources, progress, identity, options.checkpoints.directory);
    progress.committed_step = progress.checkpoint_step = progress.step;
  } catch (const IoError& error) {
    missed(error.what());
  } catch (const StorageError& error) {
    missed(error.what());
  }
}

// Commits the states that the updates have left in the swap directory.
void commit_swap(RunResources& resources, const models::RunState& state) {
  std::vector<Ticket> writes;
  for (std::size_t u = 0; u < resources.units.size(); ++u)
    writes.push_back(resources.updater->begin_write_back(u));
  finish_all(writes);
  resources.files.store->commit(state.step, models::to_json(state));
}

// Without a commit at the end, the last state needs a checkpoint.
bool checkpoint_is_due(const RunResources& resources, std::int64_t step, bool ending) {
  const config::CheckpointConfig& checkpoints = resources.plan.config.sluice.checkpoints;
  if (checkpoints.directory.empty()) return false;
  const bool due = checkpoints.every > 0 && step % checkpoints.every == 0;
  return due || (ending && !resources.commits_swap());
}

// The manifest was read when the run chose this state; another process may have changed it since.
void check_unchanged(const offload::SwapStore& store, const RunSource& source) {
  if (store.committed_metadata() == source.metadata) return;
  throw StorageError(source.directory,
                     "was changed by another process while it was read: it held "
                     "step " +
                         std::to_string(source.state->step) + ", and holds step " +
                         std::to_string(store.committed_step()) + " now");
}

}  // namespace

void write_checkpoint(RunResources& resources, Progress& progress, const RunIdentity& identity,
                      const std::string& directory) {
  const TraceSpan span(TraceRow(resources.trace, "checkpoint"), "checkpoint", {},
                       {"step", progress.step});
  const Checkpoints before = checkpoints_of_line(directory, progress.line);
  raise_order(progress, before);
  const fs::path draft = offload::checkpoint_draft_path(directory, progress.step);
  std::error_code error;
  remove_folder(draft);
  // Not its parents: a directory that went away is not made anew, on another drive and unlocked.
  fs::create_directory(draft, error);
  if (error) throw IoError(error.value(), "create directory", draft.string());
  const std::string path = offload::free_checkpoint_path(directory, progress.step);
  try {
    write_draft(resources, make_run_state(resources.plan, progress, identity), draft);
    rename_folder(draft, path);
  } catch (...) {
    remove_folder(draft);
    throw;
  }
  const std::string kept =
      remove_replaced(before, progress, path, resources.plan.config.sluice.checkpoints.keep);
  log(LogLevel::info, "checkpoint of step " + std::to_string(progress.step) + " in " + kept +
                          (kept == offload::checkpoint_path(directory, progress.step)
                               ? ""
                               : ", beside one of another run, which is kept"));
}

bool saves_step(const RunResources& resources, std::int64_t step, bool ending) {
  return resources.commits(step, ending) || checkpoint_is_due(resources, step, ending);
}

void commit_step(RunResources& resources, Progress& progress, const RunIdentity& identity,
                 bool ending) {
  if (resources.commits(progress.step, ending)) {
    commit_swap(resources, make_run_state(resources.plan, progress, identity));
    progress.committed_step = progress.step;
  }
  if (checkpoint_is_due(resources, progress.step, ending))
    try_checkpoint(resources, progress, identity);
}

void commit_restored(RunResources& resources, const RunSource& source) {
  if (source.own_swap || !resources.commits_swap()) return;
  commit_swap(resources, *source.state);
}

std::string missed_text(const MissedCheckpoints& missed) {
  return std::to_string(missed.count) + (missed.count == 1 ? " checkpoint" : " checkpoints") +
         " could not be written; the last: " + missed.last_problem;
}

void restore_states(RunResources& resources, const RunSource& source) {
  std::unique_ptr<nvme::IoEngine> io;
  std::unique_ptr<offload::SwapStore> opened;
  if (!source.own_swap) {
    std::string ignored;
    io = make_io_engine(resources.plan, ignored, resources.trace);
    opened = offload::SwapStore::open_read_only(source.directory, *io);
  }
  offload::SwapStore& store = source.own_swap ? *resources.files.store : *opened;
  check_unchanged(store, source);
  std::vector<Ticket> work;
  for (std::size_t u = 0; u < resources.units.size(); ++u) {
    if (!resources.plan.units[u].frozen) work.push_back(resources.updater->begin_restore(u, store));
  }
  try {
    finish_all(work);
  } catch (const StorageError& error) {
    if (source.older.empty()) throw;
    const std::string way =
        source.own_swap ? "clear it (sluice nvme clean " + source.directory + " --committed)"
                        : "move " + source.directory + " away";
    throw StorageError(source.directory, "cannot be continued from (" + std::string(error.what()) +
                                             "); the newest other checkpoint is " + source.older +
                                             ": to go on from there, " + way);
  }
}

}  // namespace sluice::train
