#include "totals/planned_rows.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "placement/placement.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/text.hpp"
#include "sluice/models/run_state.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "sluice/offload/swap_store.hpp"
#include "sluice/plan/plan_text.hpp"
#include "sluice/plan/prediction.hpp"
#include "step/step_model.hpp"

namespace sluice::plan {

using offload::pool_bytes;
using offload::Tier;

namespace {

void add_to(TierBytes& bytes, Tier tier, std::uint64_t size_bytes) {
  switch (tier) {
    case Tier::device:
      bytes.device += size_bytes;
      break;
    case Tier::pinned:
    case Tier::host:
      bytes.host += size_bytes;
      break;
    case Tier::nvme:
      bytes.nvme += size_bytes;
      break;
  }
}

std::string cell(std::uint64_t size_bytes) {
  return size_bytes == 0 ? "-" : format_bytes(size_bytes);
}

int slots(const Plan& plan) {
  return plan.config.sluice.durability == config::Durability::none ? 1 : 2;
}

std::string times(std::uint64_t count, std::uint64_t size_bytes) {
  return std::to_string(count) + " x " + format_bytes(size_bytes);
}

// The one of the two that names a directory.
const config::OffloadConfig& place_of(const config::OffloadConfig& first,
                                      const config::OffloadConfig& second) {
  return first.nvme_path.empty() ? second : first;
}

// Of one unit in a slot on disk. Striped over several drives, each part begins with a chunk.
std::uint64_t stored_state_bytes(const Plan& plan, std::uint64_t count) {
  const config::ZeroConfig& zero = plan.config.zero;
  const bool striped =
      !place_of(zero.offload_optimizer, zero.offload_param).further_nvme_paths.empty();
  const std::uint64_t unit = striped ? nvme::StripeLayout::kDefaultChunkBytes : offload::kPageBytes;
  std::uint64_t sum = 0;
  for (std::size_t part = 0; part < plan.state_format.part_count(); ++part)
    sum += align_up(count * plan.state_format.part(part).element_bytes, unit);
  return sum;
}

std::string describe(const models::StateFormat& format) {
  return std::string(config::name_of(format.master)) + " master and two moments" +
         (format.moments == config::MomentFormat::bf16 ? " in bf16" : "");
}

void add_homes(Plan& plan) {
  const auto ranks = static_cast<std::uint64_t>(plan.config.world_size);
  const std::uint64_t hidden = pool_bytes(hidden_bytes(
      plan.model, static_cast<std::uint64_t>(plan.config.micro_batch_size), plan.compute_dtype));
  PlanRow weights{"weights", std::string(name_of(plan.compute_dtype)), {}};
  const bool wait = plan.config.updates_need_all_gradients() || plan.own_loop();
  PlanRow gradients{"gradients", wait ? "waiting for the norm" : "waiting for their update", {}};
  if (plan.gradients_summed_on_device())
    gradients.note = "summed over " + std::to_string(plan.passes()) + " passes";
  PlanRow states{"optimizer states", describe(plan.state_format), {}};
  PlanRow cache{"cache", "of states on NVMe", {}};
  PlanRow inputs{"unit inputs", "kept for recompute", {}};
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const UnitPlacement& unit = plan.units[u];
    const std::uint64_t count = plan.layouts[u].flat_count / ranks;
    const std::uint64_t compute = pool_bytes(count * size_of(plan.compute_dtype));
    const std::uint64_t state = state_memory_bytes(plan, u);
    add_to(weights.bytes, unit.weights, compute);
    if (unit.frozen) continue;
    if (!unit.gradients_use_slots) add_to(gradients.bytes, unit.gradients, compute);
    if (unit.states == Tier::nvme) {
      cache.bytes.host += state;
      states.bytes.nvme +=
          stored_state_bytes(plan, count) * static_cast<std::uint64_t>(slots(plan));
    } else {
      add_to(states.bytes, unit.states, state);
    }
    for (const Tier tier : unit.inputs) add_to(inputs.bytes, tier, hidden);
  }
  if (states.bytes.nvme > 0) states.note += ", " + std::to_string(slots(plan)) + " slots on disk";
  for (PlanRow* row : {&weights, &gradients, &states}) plan.planned.rows.push_back(std::move(*row));
  if (!plan.own_loop()) plan.planned.rows.push_back(std::move(inputs));
  if (cache.bytes.host > 0) plan.planned.rows.push_back(std::move(cache));
}

std::string how_known(const Plan& plan) {
  if (!plan.device.workspaces) return "";
  return plan.device.workspaces->measured ? ", measured" : ", estimated: a run measures it first";
}

void add_transient(Plan& plan, const StepModel& model) {
  const Overlap overlap{plan.schedule.prefetch_units, plan.schedule.gradients_in_flight};
  const DeviceTransient transient = model.peak(plan.units, overlap);
  const auto row = [&](const char* name, std::string note, TierBytes bytes) {
    if (bytes.device + bytes.host + bytes.nvme > 0)
      plan.planned.rows.push_back({name, std::move(note), bytes});
  };
  row("gathered units",
      "the one in use and " + std::to_string(plan.schedule.prefetch_units) + " ahead",
      {transient.gathered_bytes, 0, 0});
  row("gradient buffers", std::to_string(plan.schedule.gradients_in_flight) + " in flight",
      {transient.gradient_bytes, 0, 0});
  row("activations", "kept for the backward pass", {transient.activation_bytes, 0, 0});
  row("workspace",
      !plan.own_loop()            ? "activations of one micro-batch in one unit" + how_known(plan)
      : plan.own.activation_bytes ? "activations, as given"
                                  : "activations are not planned: they take what is left",
      {transient.workspace_bytes + kSmallTensorsBytes, 0, 0});
  row("inputs in flight", "on their way to and from their home", {transient.input_bytes, 0, 0});
  row("gaps", "between blocks of the GPU's memory, at most", {transient.gap_bytes, 0, 0});
  const auto tiles = static_cast<std::uint64_t>(plan.rings.update.tiles);
  const auto slots = static_cast<std::uint64_t>(plan.rings.gradient_slots);
  row("gradient slots", times(slots, plan.rings.gradient_slot_bytes),
      {0, slots * pool_bytes(plan.rings.gradient_slot_bytes), 0});
  row("update tiles", times(tiles, plan.rings.update.tile_bytes),
      {0, tiles * pool_bytes(plan.rings.update.tile_bytes), 0});
  const auto ahead = static_cast<std::uint64_t>(plan.rings.update.read_ahead_tiles);
  row("read-ahead tiles", times(ahead, plan.rings.update.tile_bytes),
      {0, ahead * pool_bytes(plan.rings.update.tile_bytes), 0});
  const auto mover = 2 * static_cast<std::uint64_t>(plan.rings.mover.tiles);
  row("transfer tiles", times(mover, plan.rings.mover.tile_bytes),
      {0, mover * pool_bytes(plan.rings.mover.tile_bytes), 0});
}

}  // namespace

void fill_rows(Plan& plan, const StepModel& model) {
  plan.planned.rows.clear();
  plan.planned.tiers = {};
  add_homes(plan);
  add_transient(plan, model);
  for (const PlanRow& row : plan.planned.rows) {
    plan.planned.tiers.device = checked_add(plan.planned.tiers.device, row.bytes.device);
    plan.planned.tiers.host = checked_add(plan.planned.tiers.host, row.bytes.host);
    plan.planned.tiers.nvme = checked_add(plan.planned.tiers.nvme, row.bytes.nvme);
  }
}

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
  DiskNeed disk{directory, needed_bytes, std::nullopt};
  for (const auto& [known, free] : machine.free_disk_bytes) {
    if (known == directory) disk.free_bytes = free;
  }
  plan.directories.disks.push_back(disk);
}

// Of a stripe, each directory's share: as the weights say, or as if the drives were equally fast.
void add_striped_disk(Plan& plan, const MachineFacts& machine,
                      const std::vector<std::string>& directories, std::uint64_t needed_bytes) {
  std::vector<unsigned> weights = plan.config.sluice.io.drive_weights;
  if (weights.size() != directories.size()) weights.assign(directories.size(), 1);
  const nvme::StripeLayout layout(std::move(weights), nvme::StripeLayout::kDefaultChunkBytes);
  for (std::size_t i = 0; i < directories.size(); ++i)
    add_disk(plan, machine, directories[i], layout.part_bytes(i, needed_bytes));
}

// Directories on one file system have its free space once.
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

// The newest checkpoint and the one that is being written.
std::uint64_t checkpoint_bytes(const Plan& plan) {
  return checked_mul(
      2, offload::SwapStore::disk_bytes(
             models::state_shards(plan.layouts, plan.state_format, plan.config.world_size),
             offload::Durability::none));
}

}  // namespace

void fill_disks(Plan& plan, const MachineFacts& machine) {
  const config::ZeroConfig& zero = plan.config.zero;
  const std::string& checkpoints = plan.config.sluice.checkpoints.directory;
  if (!checkpoints.empty()) add_disk(plan, machine, checkpoints, checkpoint_bytes(plan));
  if (plan.placement == Placement::resident || !uses_files(plan)) return;
  const config::OffloadConfig& states_place = place_of(zero.offload_optimizer, zero.offload_param);
  const config::OffloadConfig& scratch_place = place_of(zero.offload_param, zero.offload_optimizer);
  const std::vector<std::string> states = states_place.directories();
  std::vector<std::string> scratch = scratch_place.directories();
  // One directory under two names (a trailing slash, a symbolic link) is locked once.
  std::error_code unknown;
  if (std::filesystem::equivalent(states.front(), scratch.front(), unknown))
    scratch.front() = states.front();
  std::uint64_t states_bytes = 0;
  std::uint64_t all_bytes = 0;
  for (const PlanRow& row : plan.planned.rows) {
    all_bytes += row.bytes.nvme;
    if (row.component == "optimizer states") states_bytes = row.bytes.nvme;
  }
  if (states_bytes > 0) {
    plan.directories.states = states.front();
    plan.directories.states_further = states_place.further_nvme_paths;
  }
  if (all_bytes > states_bytes) {
    plan.directories.scratch = scratch.front();
    plan.directories.scratch_further = scratch_place.further_nvme_paths;
  }
  add_striped_disk(plan, machine, states, states_bytes);
  add_striped_disk(plan, machine, scratch, all_bytes - states_bytes);
  share_free_space(plan.directories.disks, machine);
}

namespace {

std::uint64_t average_written_per_step(const Plan& plan) {
  const auto every = static_cast<std::uint64_t>(plan.config.sluice.commit_every);
  const std::uint64_t between = plan.traffic.nvme_written_between_commits_bytes;
  return between + (plan.traffic.nvme_written_bytes - between) / every;
}

std::string traffic_line(const Plan& plan) {
  std::string text = "each step: " + format_bytes(plan.traffic.h2d_bytes) + " to the device, " +
                     format_bytes(plan.traffic.d2h_bytes) + " back; the drive reads " +
                     format_bytes(plan.traffic.nvme_read_bytes) + " and writes " +
                     format_bytes(plan.traffic.nvme_written_bytes);
  if (plan.traffic.nvme_written_between_commits_bytes < plan.traffic.nvme_written_bytes)
    text +=
        ", " + format_bytes(plan.traffic.nvme_written_between_commits_bytes) + " between commits";
  if (plan.traffic.nvme_cached_bytes > 0)
    text += "; the cache saves it " + format_bytes(plan.traffic.nvme_cached_bytes) + " of reading";
  return text + "\n";
}

// Empty where nothing is written, or nobody said what the drives are rated for.
std::string endurance_line(const Plan& plan) {
  const std::size_t drives = 1 + plan.directories.states_further.size();
  const std::uint64_t rated =
      checked_mul(plan.config.sluice.drive_endurance_bytes, static_cast<std::uint64_t>(drives));
  const std::uint64_t written = average_written_per_step(plan);
  if (rated == 0 || written == 0) return "";
  return "endurance: " + std::string(drives > 1 ? "drives" : "a drive") + " rated for " +
         format_bytes(rated) + (drives > 1 ? " together" : "") + " " +
         (drives > 1 ? "take" : "takes") + " the writes of " + std::to_string(rated / written) +
         " such steps\n";
}

bool any_frozen(const Plan& plan) {
  return std::any_of(plan.layouts.begin(), plan.layouts.end(),
                     [](const zero::UnitLayout& layout) { return layout.frozen; });
}

}  // namespace

std::string plan_table(const Plan& plan) {
  const bool limited = plan.budget.device_bytes.has_value();
  std::vector<std::vector<std::string>> rows = {{"", "device", "host", "nvme", ""}};
  for (const PlanRow& row : plan.planned.rows) {
    rows.push_back({row.component, cell(row.bytes.device), cell(row.bytes.host),
                    cell(row.bytes.nvme), row.note});
  }
  rows.push_back({"need", cell(plan.planned.tiers.device), cell(plan.planned.tiers.host),
                  cell(plan.planned.tiers.nvme), ""});
  if (limited) {
    rows.push_back({"budget", format_bytes(*plan.budget.device_bytes),
                    format_bytes(*plan.budget.host_bytes), "-", ""});
    const auto short_by = [](std::uint64_t need, std::uint64_t budget) {
      return need > budget ? format_bytes(need - budget) : std::string("-");
    };
    if (plan.planned.tiers.device > *plan.budget.device_bytes ||
        plan.planned.tiers.host > *plan.budget.host_bytes) {
      rows.push_back({"short by", short_by(plan.planned.tiers.device, *plan.budget.device_bytes),
                      short_by(plan.planned.tiers.host, *plan.budget.host_bytes), "-", ""});
    }
    rows.push_back({"least possible", format_bytes(plan.least.device_bytes),
                    format_bytes(plan.least.host_bytes), "-",
                    "both at once: what can be spilled, nothing ahead"});
  }
  std::string text = "computes on: " + compute_name(plan) +
                     "\nmodel: " + format_count(plan.model_size.parameters) +
                     " parameters, training state " + format_bytes(plan.model_size.state_bytes) +
                     " (16 bytes per parameter" + (any_frozen(plan) ? " that trains)" : ")");
  if (limited) {
    const double ratio = static_cast<double>(plan.model_size.state_bytes) /
                         static_cast<double>(*plan.budget.device_bytes + *plan.budget.host_bytes);
    char times_text[48];
    std::snprintf(times_text, sizeof times_text, ", %.1f times the budgets", ratio);
    if (ratio >= 1) text += times_text;
  }
  text += "\n\n" + format_table(rows);
  text += "\noutside the tiers: " + format_bytes(plan.planned.runtime_bytes) +
          " (LibTorch, oneDNN, the program itself)\n";
  for (const DiskNeed& disk : plan.directories.disks) {
    text += "disk: " + disk.directory + " needs " + format_bytes(disk.needed_bytes) +
            (disk.free_bytes ? ", " + format_bytes(*disk.free_bytes) + " free" +
                                   (disk.shares_file_system ? " beside the other directories" : "")
                             : "; it does not exist yet: create it before training") +
            "\n";
  }
  return text + traffic_line(plan) + endurance_line(plan);
}

}  // namespace sluice::plan
