#include "saved/checkpoint.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/offload/checkpoint_folder.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "sluice/offload/swap_directory.hpp"
#include "sluice/offload/swap_store.hpp"

namespace sluice::train {

namespace fs = std::filesystem;

namespace {

void sync_path(const fs::path& path) {
  const UniqueFd fd(SLUICE_SYSCALL(::open(path.c_str(), O_RDONLY | O_CLOEXEC), path.string()));
  SLUICE_SYSCALL(::fsync(fd.get()), path.string());
}

void sync_tree(const fs::path& directory) {
  for (const auto& entry : fs::directory_iterator(directory)) sync_path(entry.path());
  sync_path(directory);
}

// Makes a directory and its missing parents. Their names survive loss of power: else a checkpoint
// that is durable itself could be out of reach.
void make_directories(const fs::path& directory, std::error_code& error) {
  std::vector<fs::path> made;
  std::error_code ignored;
  for (fs::path path = fs::absolute(directory, error); !error && !fs::exists(path, ignored);
       path = path.parent_path())
    made.push_back(path);
  fs::create_directories(directory, error);
  if (error) return;
  for (const fs::path& path : made) sync_path(path.parent_path());
}

// Removes a folder and the files in it; ignores errors. std::filesystem::remove_all is not usable:
// libtorch.so of the wheel exports a version of it that calls a missing function, and a program
// that links libtorch.so gets that version.
void remove_folder(const fs::path& path) {
  std::error_code error;
  std::vector<fs::path> files;
  for (auto entry = fs::directory_iterator(path, error);
       !error && entry != fs::directory_iterator(); entry.increment(error))
    files.push_back(entry->path());
  for (const fs::path& file : files) fs::remove(file, error);
  fs::remove(path, error);
}

// Removes the manifest first, so that a kill in between leaves nothing that looks like a
// checkpoint.
void remove_checkpoint(const fs::path& path) {
  fs::remove(path / "manifest.json");
  remove_folder(path);
}

void remove_old(const fs::path& directory, std::int64_t keep) {
  const auto found = models::list_checkpoints(directory.string());
  const auto kept = static_cast<std::size_t>(keep);
  for (std::size_t i = 0; i + kept < found.size(); ++i) remove_checkpoint(found[i].path);
}

}  // namespace

std::unique_ptr<offload::DirectoryLock> hold_checkpoint_directory(const std::string& directory) {
  std::error_code error;
  make_directories(directory, error);
  if (error && !fs::is_directory(directory)) {
    throw IoError(error.value(), "create directory", directory, 0, 0,
                  "\"checkpoint_dir\" must name a directory, or where one can be made");
  }
  auto lock =
      std::make_unique<offload::DirectoryLock>(directory, offload::DirectoryLock::Mode::exclusive);
  offload::remove_dead_checkpoints(directory);
  return lock;
}

void write_checkpoint(RunResources& resources, const models::RunState& state,
                      const std::string& directory) {
  const config::SluiceConfig& options = resources.plan.config.sluice;
  const TraceSpan span(TraceRow(resources.trace, "checkpoint"), "checkpoint", {},
                       {"step", state.step});
  const fs::path parent = directory;
  const fs::path final_path = offload::checkpoint_path(parent, state.step);
  const fs::path temporary = offload::checkpoint_draft_path(parent, state.step);
  std::error_code error;
  remove_folder(temporary);
  fs::create_directories(temporary, error);
  if (error) throw IoError(error.value(), "create directory", temporary.string());
  try {
    std::string ignored;
    // The checkpoint gets an I/O engine of its own, so it does not queue behind the run's reads.
    const auto io = make_io_engine(resources.plan, ignored, resources.trace);
    const auto store = offload::SwapStore::create(
        temporary.string(), *io, models::state_shards(state.units, state.format, state.world_size),
        offload::Durability::none, nvme::DirectIo::automatic);
    std::vector<Ticket> copies;
    for (std::size_t u = 0; u < resources.units.size(); ++u) {
      if (!resources.plan.units[u].frozen)
        copies.push_back(resources.updater->begin_copy_to(u, *store));
    }
    finish_all(copies);
    store->commit(state.step, models::to_json(state));
    store->close_cleanly();
  } catch (...) {
    remove_folder(temporary);
    throw;
  }
  if (options.durability == config::Durability::power) sync_tree(temporary);
  remove_checkpoint(final_path);
  fs::rename(temporary, final_path, error);
  if (error) throw IoError(error.value(), "rename", final_path.string());
  if (options.durability == config::Durability::power) sync_path(parent);
  remove_old(parent, options.checkpoints.keep);
  log(LogLevel::info,
      "checkpoint of step " + std::to_string(state.step) + " in " + final_path.string());
}

bool commit_step(RunResources& resources, const models::RunState& state, bool ending) {
  const config::SluiceConfig& options = resources.plan.config.sluice;
  bool survives = false;
  if (resources.commits(state.step, ending)) {
    std::vector<Ticket> writes;
    for (std::size_t u = 0; u < resources.units.size(); ++u)
      writes.push_back(resources.updater->begin_write_back(u));
    finish_all(writes);
    resources.files.store->commit(state.step, models::to_json(state));
    survives = true;
  }
  if (options.checkpoints.directory.empty()) return survives;
  const bool due = options.checkpoints.every > 0 && state.step % options.checkpoints.every == 0;
  if (!due && !(ending && !resources.commits_swap())) return survives;
  write_checkpoint(resources, state, options.checkpoints.directory);
  return true;
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
  std::vector<Ticket> work;
  for (std::size_t u = 0; u < resources.units.size(); ++u) {
    if (!resources.plan.units[u].frozen) work.push_back(resources.updater->begin_restore(u, store));
  }
  finish_all(work);
}

}  // namespace sluice::train
