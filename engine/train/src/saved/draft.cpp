#include "saved/draft.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <system_error>
#include <utility>

#include "saved/synced_path.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/written.hpp"
#include "sluice/offload/checkpoint_folder.hpp"
#include "sluice/offload/swap_directory.hpp"
#include "sluice/offload/swap_store.hpp"

namespace sluice::train {

namespace fs = std::filesystem;

namespace {

// Gives the checkpoint the name of a draft, which survives loss of power. Returns its path; its old
// one where something has that name.
fs::path make_draft_of(const fs::path& checkpoint) {
  const auto folder = offload::checkpoint_folder_of(checkpoint.string());
  if (!folder || folder->is_draft) return checkpoint;
  const fs::path parent = checkpoint.parent_path();
  fs::path draft = offload::checkpoint_draft_path(parent.string(), folder->step);
  if (::rename(checkpoint.c_str(), draft.c_str()) != 0) return checkpoint;
  sync_path(parent);
  return draft;
}

// The folder at `path` has no state any more. It gets its name back, so that what its user put
// there is where it was. A folder of ranks in it would count as a damaged checkpoint.
void leave_folder(const fs::path& path, const fs::path& checkpoint,
                  const std::vector<std::string>& left) {
  fs::path where = path;
  if (path != checkpoint && !offload::holds_state_files(path) &&
      ::rename(path.c_str(), checkpoint.c_str()) == 0)
    where = checkpoint;
  const std::string first = fs::path(left.front()).lexically_relative(path).string();
  log(LogLevel::warn,
      where.string() + ": the old checkpoint is removed, and the folder stays: " + first +
          (left.size() == 1 ? "" : " and " + std::to_string(left.size() - 1) + " more") +
          " in it, which the run did not write");
}

// So that a kill in between leaves a draft. A link goes alone. The manifest is the first file to
// go: where it cannot, the checkpoint stays as it was.
void remove_checkpoint(const fs::path& checkpoint) {
  if (fs::is_symlink(fs::symlink_status(checkpoint))) {
    fs::remove(checkpoint);
    return;
  }
  SLUICE_SYSCALL(::access(checkpoint.c_str(), W_OK | X_OK), checkpoint.string());
  const fs::path path = make_draft_of(checkpoint);
  try {
    offload::remove_rank_manifest(path);
    fs::remove(path / "manifest.json");
  } catch (...) {
    if (path != checkpoint) ::rename(path.c_str(), checkpoint.c_str());
    throw;
  }
  const offload::RemovedCheckpoint removed = offload::remove_checkpoint_files(path);
  if (removed.error) throw fs::filesystem_error("cannot remove", path, removed.error);
  if (!removed.left.empty()) leave_folder(path, checkpoint, removed.left);
}

// A checkpoint that is not needed any more and cannot be removed costs space, not data.
void try_remove_checkpoint(const std::string& path) {
  try {
    remove_checkpoint(path);
  } catch (const std::system_error& error) {  // of the file system's functions, and IoError
    log(LogLevel::warn, "an old checkpoint is left: " + std::string(error.what()));
  }
}

using Checkpoints = std::vector<models::Checkpoint>;

// Those of `line`, oldest first.
Checkpoints checkpoints_of_line(Checkpoints found, const std::string& line) {
  std::erase_if(found, [&](const models::Checkpoint& each) { return each.line != line; });
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.order < b.order; });
  return found;
}

void rename_folder(const fs::path& from, const fs::path& to) {
  SLUICE_SYSCALL(::rename(from.c_str(), to.c_str()), to.string());
}

// Removes what the checkpoint at `path` replaces. Errors are lines in the log, because the
// checkpoint is whole. Returns where the checkpoint is then.
std::string remove_replaced(const Draft& draft, const std::string& path) {
  Checkpoints others;
  for (const models::Checkpoint& each : draft.before) {
    if (each.step == draft.step) {
      try_remove_checkpoint(each.path);
    } else {
      others.push_back(each);
    }
  }
  const auto kept = static_cast<std::size_t>(draft.keep - 1);  // beside the one at `path`
  for (std::size_t i = 0; i + kept < others.size(); ++i) try_remove_checkpoint(others[i].path);
  std::string plain = offload::checkpoint_path(draft.directory, draft.step);
  std::error_code error;
  if (path == plain || fs::exists(fs::symlink_status(plain, error))) return path;
  std::string where = path;
  try {
    rename_folder(path, plain);
    where = plain;
    sync_path(draft.directory);
  } catch (const IoError& problem) {
    log(LogLevel::warn, "the checkpoint is at " + where + ": " + problem.what());
  }
  return where;
}

}  // namespace

fs::path Draft::path() const {
  return offload::checkpoint_draft_path(directory, step);
}

// Not its parents: a directory that went away is not made anew, on another drive and unlocked.
void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directory(folder, error);
  if (error) throw IoError(error.value(), "create directory", folder.string());
}

void sync_tree(const fs::path& directory) {
  for (const auto& entry : fs::directory_iterator(directory)) sync_path(entry.path());
  sync_path(directory);
}

Draft begin_draft(const std::string& directory, const Progress& progress, std::int64_t keep,
                  models::KnownCheckpoints& known) {
  Draft draft{.directory = directory, .step = progress.step, .keep = keep, .before = {}};
  Checkpoints found = models::list_checkpoints(directory, known);
  // Those that cannot be read belong to no line, and their time is unknown.
  std::erase_if(found, [](const models::Checkpoint& each) { return !each.damage.empty(); });
  for (const models::Checkpoint& each : found)
    draft.last_saved_at = std::max(draft.last_saved_at, each.saved_at);
  draft.before = checkpoints_of_line(std::move(found), progress.line);
  offload::remove_checkpoint_files(draft.path());
  make_folder(draft.path());
  return draft;
}

std::int64_t order_above(const Draft& draft, const Progress& progress) {
  std::int64_t order = progress.order;
  for (const models::Checkpoint& each : draft.before) {
    const bool same_state = each.order == order && each.step == progress.step;
    if (each.order >= order && !same_state) order = each.order + 1;
  }
  return order;
}

std::string publish(const Draft& draft) {
  const std::string path = offload::free_checkpoint_path(draft.directory, draft.step);
  rename_folder(draft.path(), path);
  sync_path(draft.directory);
  return remove_replaced(draft, path);
}

void remove_draft(const Draft& draft) {
  offload::remove_checkpoint_files(draft.path());
}

}  // namespace sluice::train
