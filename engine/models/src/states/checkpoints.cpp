#include "sluice/models/checkpoints.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <exception>
#include <tuple>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/models/saved_state.hpp"
#include "sluice/offload/checkpoint_folder.hpp"
#include "sluice/offload/swap_directory.hpp"
#include "sluice/offload/swap_state.hpp"
#include "sluice/offload/swap_store.hpp"

namespace sluice::models {

namespace {

// Nanoseconds since 1970: when the last file came into a folder; 0: unknown.
std::int64_t made_at(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return 0;
  return std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

Checkpoint read_checkpoint(const offload::CheckpointFolder& folder) {
  Checkpoint found;
  found.path = folder.path;
  found.step = found.order = folder.step;
  found.number = folder.number;
  try {
    const SavedState saved = read_state(folder.path);
    found.step = saved.state.step;
    found.line = saved.state.line;
    found.order = saved.state.order;
    found.saved_at = saved.state.saved_at;
  } catch (const std::exception& error) {
    found.damage = error.what();
    found.saved_at = made_at(folder.path);
    try {
      if (!holds_state(folder.path)) found.damage = "its manifest is missing";
      found.step = offload::SwapStore::read_committed(folder.path).step;
      found.damage.clear();  // of another program: who reads it says what is wrong
    } catch (const std::exception&) {
      // It is damaged, or cannot be read.
    }
  }
  return found;
}

// Which manifests the checkpoint and the parts of its ranks have. Empty when there is none that can
// be read.
std::string manifests_of(const std::string& folder) {
  std::vector<std::string> paths = {folder + "/manifest.json", folder + "/ranks.json"};
  for (const offload::RankFolder& part : offload::list_rank_folders(folder))
    paths.push_back(part.path + "/manifest.json");
  std::string text;
  for (const std::string& path : paths) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) continue;
    // A change of the size or of the time of the last write changes st_ctim too.
    for (const std::int64_t number :
         {static_cast<std::int64_t>(status.st_dev), static_cast<std::int64_t>(status.st_ino),
          std::int64_t{status.st_ctim.tv_sec}, std::int64_t{status.st_ctim.tv_nsec}}) {
      text += std::to_string(number) + ' ';
    }
    text += path + '\n';
  }
  return text;
}

// Also one that lost its manifest: read_checkpoint() says so.
bool is_finished(const offload::CheckpointFolder& folder) {
  try {
    return holds_state(folder.path) || offload::holds_state_files(folder.path);
  } catch (const std::exception&) {
    return true;  // read_checkpoint() says what is wrong with it
  }
}

// Both rules decide by the folder's number at last: manifests of older versions, which have whole
// seconds, may have equal times. _training/saved/states.py has the same rules.
bool is_later_in_line(const Checkpoint& a, const Checkpoint& b) {
  return std::tie(a.order, a.saved_at, a.number) > std::tie(b.order, b.saved_at, b.number);
}

bool was_saved_later(const Checkpoint& a, const Checkpoint& b) {
  return std::tie(a.saved_at, a.number, a.order) > std::tie(b.saved_at, b.number, b.order);
}

// Null when all are damaged.
const Checkpoint* newest_of(const std::vector<Checkpoint>& found) {
  const Checkpoint* last_saved = nullptr;
  for (const Checkpoint& each : found) {
    if (!each.damage.empty()) continue;
    if (last_saved == nullptr || was_saved_later(each, *last_saved)) last_saved = &each;
  }
  if (last_saved == nullptr) return nullptr;
  const Checkpoint* newest = last_saved;
  for (const Checkpoint& each : found) {
    if (each.damage.empty() && each.line == last_saved->line && is_later_in_line(each, *newest))
      newest = &each;
  }
  return newest;
}

void warn_of_another_line(const std::vector<Checkpoint>& found, const Checkpoint& newest) {
  const Checkpoint* other = nullptr;
  for (const Checkpoint& each : found) {
    if (!each.damage.empty() || each.line == newest.line) continue;
    if (other == nullptr || is_later_in_line(each, *other)) other = &each;
  }
  if (other == nullptr) return;
  log(LogLevel::warn, "the folder holds checkpoints of more than one run: " + newest.path +
                          " is taken, which was saved last; " + other->path + " is of another run");
}

// By the clock of the folders: `saved_at` is ahead of it after a clock that ran fast, also in the
// checkpoints that followed.
std::int64_t folder_time(const Checkpoint& whole) {
  const std::int64_t made = made_at(whole.path);
  return made == 0 ? whole.saved_at : std::min(whole.saved_at, made);
}

}  // namespace

std::vector<Checkpoint> list_checkpoints(const std::string& directory) {
  KnownCheckpoints none;
  return list_checkpoints(directory, none);
}

std::vector<Checkpoint> list_checkpoints(const std::string& directory, KnownCheckpoints& known) {
  std::vector<Checkpoint> found;
  KnownCheckpoints now_known;
  for (const offload::CheckpointFolder& folder : offload::list_checkpoint_folders(directory)) {
    if (folder.is_draft) continue;
    const std::string manifests = manifests_of(folder.path);  // before they are read
    const auto before = known.find(folder.path);
    const bool unchanged = before != known.end() && before->second.manifests == manifests;
    if (!unchanged && !is_finished(folder)) continue;
    found.push_back(unchanged ? before->second.checkpoint : read_checkpoint(folder));
    if (found.back().damage.empty() && !manifests.empty())
      now_known[folder.path] = {manifests, found.back()};
  }
  known = std::move(now_known);
  std::stable_sort(found.begin(), found.end(), [](const Checkpoint& a, const Checkpoint& b) {
    return std::tie(a.step, a.order) < std::tie(b.step, b.order);
  });
  return found;
}

void check_none_damaged_after(const std::vector<Checkpoint>& found, const Checkpoint* newest) {
  for (const Checkpoint& each : found) {
    if (each.damage.empty()) continue;
    // A run that returned to an earlier step saves newer ones with smaller numbers.
    const bool is_older = newest != nullptr && each.step <= newest->step &&
                          (newest->saved_at == 0 || each.saved_at <= folder_time(*newest));
    if (is_older) continue;
    throw StorageError(
        each.path,
        newest == nullptr
            ? "cannot be read, and no other checkpoint is whole: " + each.damage
            : "may be the newest checkpoint, and cannot be read; the newest whole one is " +
                  newest->path + ": to go on from it, move " + each.path + " away (" + each.damage +
                  ")");
  }
}

std::string newest_checkpoint(const std::string& directory) {
  const std::vector<Checkpoint> found = list_checkpoints(directory);
  const Checkpoint* const newest = newest_of(found);
  check_none_damaged_after(found, newest);
  if (newest == nullptr) return "";
  warn_of_another_line(found, *newest);
  return newest->path;
}

std::string find_run(const std::string& directory) {
  if (holds_state(directory)) return directory;
  std::string newest = newest_checkpoint(directory);
  if (newest.empty()) {
    throw StorageError(directory, "holds no committed state of a run, and no checkpoint (step-*)");
  }
  return newest;
}

}  // namespace sluice::models
