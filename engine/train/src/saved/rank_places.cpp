#include "saved/rank_places.hpp"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>

#include "sluice/base/error.hpp"
#include "sluice/base/host_name.hpp"
#include "sluice/base/text.hpp"
#include "sluice/offload/swap_directory.hpp"
#include "sluice/offload/swap_state.hpp"
#include "sluice/offload/swap_store.hpp"

namespace sluice::train {

namespace {

void enter_rank_folder(const config::TrainConfig& config, std::string& directory) {
  directory = offload::rank_folder(directory, config.rank, config.world_size);
  std::error_code error;
  std::filesystem::create_directory(directory, error);
  if (error) throw IoError(error.value(), "create directory", directory);
}

// For what ranks of another number left: a drive that is lost makes all of it useless.
[[noreturn]] void throw_with_checkpoint(const RunSource& source, const StorageError& error) {
  throw StorageError(source.directory,
                     "cannot be continued from (" + std::string(error.what()) +
                         "); if that drive is lost, the newest checkpoint is " + source.older +
                         ": to go on from there, clear the directory (sluice nvme clean " +
                         source.directory + " --committed, which loses its state)");
}

}  // namespace

offload::SwapPlace swap_place(const config::TrainConfig& config, plan::Placement placement) {
  if (placement == plan::Placement::resident) return "";
  return {config.zero.states_place().directories, {}};
}

std::string swap_directory(const config::TrainConfig& config, plan::Placement placement) {
  return swap_place(config, placement).directory;
}

config::TrainConfig with_rank_folders(config::TrainConfig config, plan::Placement placement) {
  if (config.world_size == 1 || placement == plan::Placement::resident) return config;
  for (config::OffloadConfig* offload :
       {&config.zero.offload_param, &config.zero.offload_optimizer}) {
    for (std::string& directory : offload->directories) enter_rank_folder(config, directory);
  }
  return config;
}

bool holds_states(const std::string& folder) {
  std::error_code error;
  return std::filesystem::is_directory(folder, error) &&
         !offload::SwapStore::list_files(folder).empty();
}

void require_all_parts(const RunSource& source) {
  const auto missing = std::ranges::find_if(
      source.parts, [](const models::SavedPart& part) { return !holds_states(part.folder); });
  if (missing == source.parts.end()) return;
  const std::string ranks = counted(source.parts.size(), "rank");
  const std::string clean = "(sluice nvme clean " + source.directory + " --committed";
  throw StorageError(
      source.directory,
      "has the states of " + ranks + ", all of which each rank reads, and " + missing->folder +
          " has none on host " + host_name() +
          ": they may lie on the disks of other hosts. Start " + ranks +
          " on the hosts that they had before" +
          (source.older.empty()
               ? "; where the folder is lost, restore it from a copy, or remove the run " + clean +
                     ") to start over"
               : "; or, to go on from the newest other checkpoint, " + source.older +
                     ", clear the directory on every host " + clean +
                     ", which loses its state) and resume"));
}

void check_parts(const RunSource& source, const config::TrainConfig& config,
                 plan::Placement placement) {
  if (!source.in_swap_directory) return;
  const offload::SwapPlace swap = swap_place(config, placement);
  const auto ranks = static_cast<int>(source.parts.size());
  try {
    for (int rank = 0; rank < ranks; ++rank) {
      const models::SavedPart& part = source.parts[static_cast<std::size_t>(rank)];
      // Each rank opens its own.
      if (source.own_swap && rank != config.rank) continue;
      std::error_code error;
      if (!std::filesystem::is_directory(part.folder, error)) continue;
      offload::check_parts(
          offload::rank_place(swap, rank, ranks), part.digest,
          source.own_swap ? offload::PartsUse::continued : offload::PartsUse::read);
    }
  } catch (const StorageError& error) {
    if (source.own_swap || source.older.empty()) throw;
    throw_with_checkpoint(source, error);
  }
}

}  // namespace sluice::train
