#include "sluice/models/saved_state.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/offload/swap_directory.hpp"
#include "sluice/offload/swap_state.hpp"
#include "sluice/offload/swap_store.hpp"

namespace sluice::models {

namespace {

std::string manifest_of(const std::string& folder) {
  return folder + "/manifest.json";
}

// Throws StorageError when the manifest's parts contradict each other: no run writes that.
void check_complete(const RunState& state, const offload::CommittedState& committed,
                    const std::string& path) {
  if (state.step != committed.step) {
    throw StorageError(path, "is of step " + std::to_string(committed.step) +
                                 ", but describes a run at step " + std::to_string(state.step));
  }
  for (const offload::ShardSpec& wanted :
       state_shards(state.units, state.format, state.world_size)) {
    const bool found = std::ranges::any_of(committed.shards, [&](const offload::ShardSpec& shard) {
      return shard.name == wanted.name && shard.size_bytes == wanted.size_bytes;
    });
    if (!found) {
      throw StorageError(path, "has no shard \"" + wanted.name + "\" of " +
                                   std::to_string(wanted.size_bytes) + " bytes");
    }
  }
}

SavedState read_first_part(const std::string& directory, std::vector<SavedPart> parts) {
  SavedState saved;
  saved.directory = directory;
  const SavedPart& first = parts.front();
  offload::CommittedState committed =
      offload::SwapStore::read_committed(first.folder, first.digest);
  const std::string path = manifest_of(first.folder);
  saved.state = parse_run_state(committed.metadata, path);
  if (saved.state.world_size != static_cast<int>(parts.size())) {
    throw StorageError(path, "is the part of one of " + std::to_string(saved.state.world_size) +
                                 " ranks: their state is that of the directory that holds "
                                 "ranks.json and the folders of all");
  }
  check_complete(saved.state, committed, path);
  saved.metadata = std::move(committed.metadata);
  saved.parts = std::move(parts);
  return saved;
}

SavedState read_ranks(const std::string& directory, const offload::RankManifest& ranks) {
  std::vector<SavedPart> parts;
  for (int rank = 0; rank < ranks.world_size(); ++rank) {
    const std::string folder = offload::rank_folder(directory, rank, ranks.world_size());
    parts.push_back({folder, ranks.digests[static_cast<std::size_t>(rank)]});
  }
  // The folders of other ranks may be on other hosts; rank 0 wrote ranks.json here.
  std::error_code error;
  if (!std::filesystem::is_directory(parts.front().folder, error)) {
    throw StorageError(directory, "names the states of " + std::to_string(ranks.world_size()) +
                                      " ranks, and " + parts.front().folder + " is not here");
  }
  return read_first_part(directory, std::move(parts));
}

// The states of several ranks and of one, in one directory.
struct Found {
  std::optional<SavedState> ranks;
  std::optional<SavedState> one;

  bool both() const { return ranks && one; }
  // With equal places in the line they are one state, and the ranks' is taken.
  bool ranks_count() const { return ranks && (!one || ranks->state.order >= one->state.order); }
};

Found find_states(const std::string& directory) {
  Found found;
  if (const auto ranks = offload::load_rank_manifest(directory))
    found.ranks = read_ranks(directory, *ranks);
  if (offload::SwapStore::holds_committed(directory))
    found.one = read_first_part(directory, {{directory, std::nullopt}});
  if (found.both() && found.ranks->state.line != found.one->state.line) {
    throw StorageError(directory,
                       "holds states of two runs, of several ranks (ranks.json) and of one "
                       "(manifest.json): move one of these files away");
  }
  return found;
}

}  // namespace

bool holds_state(const std::string& directory) {
  return offload::load_rank_manifest(directory).has_value() ||
         offload::SwapStore::holds_committed(directory);
}

SavedState read_state(const std::string& directory) {
  Found found = find_states(directory);
  if (found.ranks_count()) return *std::move(found.ranks);
  if (found.one) return *std::move(found.one);
  return read_first_part(directory, {{directory, std::nullopt}});  // throws
}

void forget_superseded(const std::string& directory) {
  const Found found = find_states(directory);
  if (!found.both()) return;
  log(LogLevel::info,
      directory +
          ": removed the state that the run had before it went on with another number of ranks");
  offload::remove_other_states(
      directory, found.ranks_count() ? found.ranks->state.world_size : found.one->state.world_size);
}

}  // namespace sluice::models
