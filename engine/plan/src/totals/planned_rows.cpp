#include "totals/planned_rows.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/base/text.hpp"
#include "sluice/nvme/striped_file.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "step/home_bytes.hpp"
#include "totals/disk_needs.hpp"

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

// Slots on disk for the states.
int slots(const Plan& plan) {
  return plan.state_durability() == Durability::none ? 1 : 2;
}

std::string slots_text(int count) {
  return ", " + counted(count, "slot") + " on disk";
}

std::string times(std::uint64_t count, std::uint64_t size_bytes) {
  return std::to_string(count) + " x " + format_bytes(size_bytes);
}

// Bytes of one unit's states in one slot on disk. Over several drives, each part begins a new chunk
// of the stripe.
std::uint64_t stored_state_bytes(const Plan& plan, std::uint64_t count) {
  const bool striped = plan.config.zero.states_place().directories.size() > 1;
  const std::uint64_t unit = striped ? nvme::StripeLayout::kDefaultChunkBytes : offload::kPageBytes;
  std::uint64_t sum = 0;
  for (std::size_t part = 0; part < plan.state_format.part_count(); ++part)
    sum += align_up(count * plan.state_format.part(part).element_bytes, unit);
  return sum;
}

std::string text_of(const models::StateFormat& format) {
  const std::size_t moments = cpu_adam::moment_count(format.rule);
  const char* const counts[] = {"no moments", "one moment", "two moments", "three moments"};
  return std::string(config::name_of(format.master)) + " master and " + counts[moments] +
         (moments > 0 && format.moments == config::MomentFormat::bf16 ? " in bf16" : "");
}

std::string second_states_text(const Plan& plan) {
  return std::string("for updates that begin before ") +
         (plan.own_loop() ? "step()" : "the norm is known");
}

// Adds the rows of bytes at home.
void add_homes(Plan& plan) {
  const std::uint64_t hidden = pool_bytes(plan.unit_input_bytes());
  PlanRow weights{"weights", std::string(name_of(plan.compute_dtype)), {}};
  const bool begin_early = plan.updates_in_backward();
  PlanRow gradients{
      "gradients", begin_early ? "waiting for their update" : "waiting for the norm", {}};
  if (plan.gradients_summed_on_device())
    gradients.note = "summed over " + std::to_string(plan.passes()) + " passes";
  if (plan.config.gradient_dtype() != plan.compute_dtype)
    gradients.note = std::string(name_of(plan.config.gradient_dtype())) + ", " + gradients.note;
  PlanRow states{"optimizer states", text_of(plan.state_format), {}};
  PlanRow cache{"cache", "of states on NVMe", {}};
  PlanRow second{"second states", second_states_text(plan), {}};
  PlanRow sums{"sums of gradients", "until the last backward of a step", {}};
  PlanRow inputs{"unit inputs", "for the backward pass", {}};
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const UnitPlacement& unit = plan.units[u];
    const std::uint64_t count = shard_count(plan, u);
    const std::uint64_t state = state_memory_bytes(plan, u);
    add_to(weights.bytes, unit.weights, block_bytes(plan, unit.weights, weights_bytes(plan, u)));
    if (unit.frozen) continue;
    if (!unit.gradients_use_slots)
      add_to(gradients.bytes, unit.gradients,
             block_bytes(plan, unit.gradients, gradient_bytes(plan, u)));
    if (unit.states == Tier::nvme) {
      cache.bytes.host += state;
      states.bytes.nvme +=
          stored_state_bytes(plan, count) * static_cast<std::uint64_t>(slots(plan));
    } else {
      add_to(states.bytes, unit.states, state);
    }
    if (unit.sums_on_device) sums.bytes.device += sum_bytes(plan, u);
    if (unit.second_states) second.bytes.host += all_parts_bytes(plan, u);
    for (const Tier tier : unit.inputs) add_to(inputs.bytes, tier, block_bytes(plan, tier, hidden));
  }
  if (states.bytes.nvme > 0) states.note += slots_text(slots(plan));
  for (PlanRow* row : {&weights, &gradients, &states}) plan.planned.rows.push_back(std::move(*row));
  if (!plan.own_loop()) plan.planned.rows.push_back(std::move(inputs));
  if (sums.bytes.device > 0) plan.planned.rows.push_back(std::move(sums));
  if (cache.bytes.host > 0) plan.planned.rows.push_back(std::move(cache));
  if (second.bytes.host > 0) plan.planned.rows.push_back(std::move(second));
  if (const std::uint64_t copies = checkpoint_copies_bytes(plan); copies > 0)
    plan.planned.rows.push_back(
        {"checkpoint copies", "of states, written while steps go on", {0, copies, 0}});
}

// How the planner knows the workspaces of the units; empty for the host device's formula.
std::string how_known(const Plan& plan) {
  if (!plan.device.workspaces) return "";
  return plan.device.workspaces->measured ? ", measured" : ", estimated: a run measures it first";
}

// Adds the rows of transient bytes on the device, and of the rings.
void add_transient(Plan& plan, const DeviceTransient& transient) {
  const auto row = [&](const char* name, std::string note, TierBytes bytes) {
    if (bytes.device + bytes.host + bytes.nvme > 0)
      plan.planned.rows.push_back({name, std::move(note), bytes});
  };
  row("gathered units",
      "the one in use and " + std::to_string(plan.schedule.prefetch_units) + " ahead",
      {transient.gathered_bytes, 0, 0});
  row("gradient buffers", std::to_string(plan.schedule.gradients_in_flight) + " in flight",
      {transient.gradient_bytes, 0, 0});
  row("activations", "saved for the backward pass", {transient.activation_bytes, 0, 0});
  row("workspace",
      !plan.own_loop()            ? "activations of one micro-batch in one unit" + how_known(plan)
      : plan.own.activation_bytes ? "activations, of the given size"
      : shares_budget_with_loop(plan)
          ? "one gradient; activations are not planned: they take the rest of the budget"
          : "activations are not planned: they take the rest of the budget",
      {transient.workspace_bytes + kSmallTensorsBytes, 0, 0});
  row("inputs in flight", "on their way to and from their home", {transient.input_bytes, 0, 0});
  const bool pages = plan.device.gpu && plan.device.gpu->page_bytes > 0;
  row("gaps",
      pages ? "between small blocks of the GPU's memory, at most"
            : "between blocks of the GPU's memory, at most",
      {transient.gap_bytes, 0, 0});
  const auto tiles = static_cast<std::uint64_t>(plan.rings.update.tiles);
  const auto slots = static_cast<std::uint64_t>(plan.rings.gradient_slots);
  row("gradient slots", times(slots, plan.rings.gradient_slot_bytes),
      {0, slots * pool_bytes(plan.rings.gradient_slot_bytes), 0});
  row("update tiles", times(tiles, plan.rings.update.tile_bytes),
      {0, tiles * pool_bytes(plan.rings.update.tile_bytes), 0});
  const auto ahead = static_cast<std::uint64_t>(plan.rings.update.read_ahead_tiles);
  row("read-ahead tiles", times(ahead, plan.rings.update.tile_bytes),
      {0, ahead * pool_bytes(plan.rings.update.tile_bytes), 0});
  const auto on_device = static_cast<std::uint64_t>(plan.rings.update.device_tiles);
  row("update tiles of the GPU", times(on_device, plan.rings.update.device_tile_bytes),
      {on_device * pool_bytes(plan.rings.update.device_tile_bytes), 0, 0});
  row("flags of the GPU's updates", "whether a result is non-finite", update_flags_bytes(plan));
  const auto mover = 2 * static_cast<std::uint64_t>(plan.rings.mover.tiles);
  row("transfer tiles", times(mover, plan.rings.mover.tile_bytes),
      {0, mover * pool_bytes(plan.rings.mover.tile_bytes), 0});
  row("staging of ranks", "for weights and gradients between the GPUs of ranks",
      {0, staging_of_ranks_bytes(plan), 0});
}

// Mapped blocks of another size that wait for their next use. A plan fits without them, so they
// take what the budget has left: without them each step maps the blocks of its largest stage anew.
// A tenth of the free memory is for what libraries load later.
void add_kept_blocks(Plan& plan, const DeviceTransient& transient) {
  const std::uint64_t wanted = most_kept_bytes(plan, transient.workspace_bytes);
  if (wanted == 0) return;
  const std::uint64_t most = plan.device.gpu->free_bytes / 10 * 9;
  const std::uint64_t budget = std::min(most, plan.budget.device_bytes.value_or(most));
  if (budget <= plan.planned.tiers.device) return;
  const std::uint64_t kept = std::min(wanted, budget - plan.planned.tiers.device);
  plan.planned.rows.push_back(
      {"kept blocks", "mapped for the next use of their size", {kept, 0, 0}});
  plan.planned.tiers.device += kept;
}

}  // namespace

void fill_rows(Plan& plan, const StepModel& model) {
  plan.planned.rows.clear();
  plan.planned.tiers = {};
  add_homes(plan);
  const Overlap overlap{plan.schedule.prefetch_units, plan.schedule.gradients_in_flight};
  const DeviceTransient transient = model.peak(plan.units, overlap);
  add_transient(plan, transient);
  for (const PlanRow& row : plan.planned.rows) {
    plan.planned.tiers.device = checked_add(plan.planned.tiers.device, row.bytes.device);
    plan.planned.tiers.host = checked_add(plan.planned.tiers.host, row.bytes.host);
    plan.planned.tiers.nvme = checked_add(plan.planned.tiers.nvme, row.bytes.nvme);
  }
  add_kept_blocks(plan, transient);
}

}  // namespace sluice::plan
