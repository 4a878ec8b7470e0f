#include "totals/disk_needs.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sluice/base/bytes.hpp"
#include "sluice/base/text.hpp"
#include "sluice/models/run_state.hpp"
#include "sluice/nvme/striped_file.hpp"
#include "sluice/offload/swap_store.hpp"
#include "step/home_bytes.hpp"

namespace sluice::plan {

namespace {

void add_disk(Plan& plan, const MachineFacts& machine, const std::string& directory,
              std::uint64_t needed_bytes) {
  if (needed_bytes == 0) return;
  for (DiskNeed& disk : plan.directories.disks) {
    if (disk.directory == directory) {
      disk.needed_bytes += needed_bytes;
      return;
    }
  }
  DiskNeed disk;
  disk.directory = disk.name = directory;
  disk.needed_bytes = needed_bytes;
  for (std::size_t i = 0; i < machine.free_disk_bytes.size(); ++i) {
    const auto& [known, free] = machine.free_disk_bytes[i];
    if (known != directory) continue;
    disk.free_bytes = free;
    if (!machine.poorest.disks.empty()) disk.name = machine.poorest.disks[i];
  }
  plan.directories.disks.push_back(disk);
}

// Adds each directory's share of a stripe: by the configured weights, or equal shares.
void add_striped_disk(Plan& plan, const MachineFacts& machine,
                      const std::vector<std::string>& directories, std::uint64_t needed_bytes) {
  std::vector<unsigned> weights = plan.config.sluice.io.drive_weights;
  if (weights.size() != directories.size()) weights.assign(directories.size(), 1);
  const nvme::StripeLayout layout(std::move(weights), nvme::StripeLayout::kDefaultChunkBytes);
  for (std::size_t i = 0; i < directories.size(); ++i)
    add_disk(plan, machine, directories[i], layout.part_bytes(i, needed_bytes));
}

// Subtracts the needs of other directories on the same file system from a directory's free space.
void share_free_space(std::vector<DiskNeed>& disks, const MachineFacts& machine) {
  const auto file_system_of = [&](const std::string& directory) {
    std::optional<std::uint64_t> found;
    for (const auto& [known, file_system] : machine.file_systems) {
      if (known == directory) found = file_system;
    }
    return found;
  };
  for (DiskNeed& disk : disks) {
    const std::optional<std::uint64_t> here = file_system_of(disk.directory);
    if (!here || !disk.free_bytes) continue;
    for (const DiskNeed& other : disks) {
      if (&other == &disk || file_system_of(other.directory) != here) continue;
      disk.shares_file_system = true;
      *disk.free_bytes -= std::min(*disk.free_bytes, other.needed_bytes);
    }
  }
}

// The run removes an old checkpoint when the new one is whole, so one more than it keeps is there
// for a while. How many it writes is unknown here: it is refused for those that its third one finds
// beside it, and more than these are a line of the plan.
void add_checkpoints(Plan& plan, const MachineFacts& machine) {
  const config::CheckpointConfig& checkpoints = plan.config.sluice.checkpoints;
  if (checkpoints.directory.empty() || !machine.writes_checkpoints) return;
  const std::uint64_t each = offload::SwapStore::disk_bytes(
      models::state_shards(plan.layouts, plan.state_format, plan.config.world_size),
      Durability::none);
  const auto kept = static_cast<std::uint64_t>(checkpoints.every > 0 ? checkpoints.keep : 0);
  const std::uint64_t counted = checked_mul(std::min<std::uint64_t>(kept, 2), each);
  add_disk(plan, machine, checkpoints.directory, checked_add(counted, each));
  const auto disk =
      std::find_if(plan.directories.disks.begin(), plan.directories.disks.end(),
                   [&](const DiskNeed& need) { return need.directory == checkpoints.directory; });
  if (disk == plan.directories.disks.end() || !disk->free_bytes) return;
  const std::uint64_t all = checked_mul(checked_add(kept, 1), each);
  if (kept > 2 && all > *disk->free_bytes)
    plan.choices.push_back("keep: " + std::to_string(kept) +
                           " checkpoints and the one being written take " + format_bytes(all) +
                           ", and " + checkpoints.directory + " has " +
                           format_bytes(*disk->free_bytes) +
                           ", earlier checkpoints included; once it is full, new ones are missing");
  // The run replaces only as many of those that are there as it keeps.
  const std::uint64_t there = std::min(machine.checkpoint_bytes, *disk->free_bytes);
  *disk->free_bytes -= there - std::min(there, counted);
}

}  // namespace

void fill_disks(Plan& plan, const MachineFacts& machine) {
  const config::ZeroConfig& zero = plan.config.zero;
  add_checkpoints(plan, machine);
  if (plan.placement == Placement::resident || !uses_files(plan)) return;
  const std::vector<std::string> states = zero.states_place().directories;
  std::vector<std::string> scratch = zero.scratch_place().directories;
  // Two names of one directory (a trailing slash, a symbolic link) become one, so that the run
  // locks the directory once.
  std::error_code unknown;
  if (std::filesystem::equivalent(states.front(), scratch.front(), unknown))
    scratch.front() = states.front();
  std::uint64_t states_bytes = 0;
  std::uint64_t all_bytes = 0;
  for (const PlanRow& row : plan.planned.rows) {
    all_bytes += row.bytes.nvme;
    if (row.component == "optimizer states") states_bytes = row.bytes.nvme;
  }
  if (states_bytes > 0) plan.directories.states = states;
  if (all_bytes > states_bytes) plan.directories.scratch = scratch;
  add_striped_disk(plan, machine, states, states_bytes);
  add_striped_disk(plan, machine, scratch, all_bytes - states_bytes);
  share_free_space(plan.directories.disks, machine);
}

}  // namespace sluice::plan
