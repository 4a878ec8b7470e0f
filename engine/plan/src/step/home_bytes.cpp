#include "step/home_bytes.hpp"

#include "sluice/base/bytes.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "sluice/plan/tile_layout.hpp"
#include "sluice/plan/unit_placement.hpp"
#include "sluice/zero/device_ranks.hpp"

namespace sluice::plan {

using offload::pool_bytes;
using offload::Tier;

std::uint64_t block_bytes(const Plan& plan, Tier tier, std::uint64_t size_bytes) {
  if (tier == Tier::nvme) return align_up(size_bytes, offload::kPageBytes);  // of the scratch file
  const std::uint64_t page = plan.device.gpu ? plan.device.gpu->page_bytes : 0;
  const bool whole_pages = tier == Tier::device && page > 0 && size_bytes >= page;
  return whole_pages ? align_up(size_bytes, page) : size_bytes;
}

std::uint64_t shard_count(const Plan& plan, std::size_t unit) {
  return zero::shard_count(plan.layouts[unit], plan.config.world_size);
}

std::uint64_t compute_bytes(const Plan& plan, std::size_t unit) {
  return pool_bytes(checked_mul(shard_count(plan, unit), size_of(plan.compute_dtype)));
}

std::uint64_t weights_bytes(const Plan& plan, std::size_t unit) {
  if (!plan.keeps_whole_weights(unit)) return compute_bytes(plan, unit);
  return pool_bytes(checked_mul(plan.layouts[unit].flat_count, size_of(plan.compute_dtype)));
}

std::uint64_t gradient_bytes(const Plan& plan, std::size_t unit) {
  return pool_bytes(checked_mul(shard_count(plan, unit), size_of(plan.config.gradient_dtype())));
}

std::uint64_t sum_bytes(const Plan& plan, std::size_t unit) {
  return block_bytes(plan, Tier::device, gradient_bytes(plan, unit));
}

std::uint64_t part_bytes(const Plan& plan, std::size_t unit, std::size_t part) {
  return pool_bytes(
      checked_mul(shard_count(plan, unit), plan.state_format.part(part).element_bytes));
}

std::uint64_t state_memory_bytes(const Plan& plan, std::size_t unit) {
  const UnitPlacement& placement = plan.units[unit];
  std::uint64_t sum = 0;
  for (std::size_t part = 0; part < plan.state_format.part_count(); ++part) {
    if (part_has_memory(placement, plan.state_format, part))
      sum += block_bytes(plan, placement.states, part_bytes(plan, unit, part));
  }
  return sum;
}

std::uint64_t cached_bytes(const Plan& plan) {
  std::uint64_t sum = 0;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const UnitPlacement& unit = plan.units[u];
    if (unit.states == Tier::nvme && !unit.frozen) sum += state_memory_bytes(plan, u);
  }
  return sum;
}

std::uint64_t all_parts_bytes(const Plan& plan, std::size_t unit) {
  std::uint64_t sum = 0;
  for (std::size_t part = 0; part < plan.state_format.part_count(); ++part)
    sum += part_bytes(plan, unit, part);
  return sum;
}

std::uint64_t checkpoint_copies_bytes(const Plan& plan) {
  std::uint64_t sum = 0;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    if (plan.units[u].checkpoint_copy) sum += all_parts_bytes(plan, u);
  }
  return sum;
}

bool shares_budget_with_loop(const Plan& plan) {
  const bool has_own_memory = !plan.device.gpu && plan.config.sluice.device_bytes.kind !=
                                                      config::ByteBudget::Kind::automatic;
  return has_own_memory && plan.placement == Placement::configured && plan.own_loop() &&
         !plan.own.activation_bytes;
}

bool moves_files(const Plan& plan) {
  for (const UnitPlacement& unit : plan.units) {
    if (unit.weights == Tier::nvme || unit.gradients == Tier::nvme) return true;
    for (const Tier input : unit.inputs) {
      if (input == Tier::nvme) return true;
    }
  }
  return false;
}

std::uint64_t update_tile_bytes(const Plan& plan, std::uint64_t elements) {
  return tile_layout(plan.units, plan.state_format,
                     {plan.compute_dtype, plan.config.gradient_dtype()}, elements)
      .total;
}

std::uint64_t staging_of_ranks_bytes(const Plan& plan) {
  // One communicator gathers weights, one sums gradients.
  return plan.stages_ranks() ? 2 * offload::pool_bytes(zero::StagingOptions::kStagingBytes) : 0;
}

bool uses_files(const Plan& plan) {
  for (const UnitPlacement& unit : plan.units) {
    if (unit.states == Tier::nvme) return true;
  }
  return moves_files(plan);
}

std::uint64_t most_kept_bytes(const Plan& plan, std::uint64_t workspace_bytes) {
  // The forward of a unit, the loss and the backward of a unit have blocks of their own sizes.
  constexpr std::uint64_t kKeptWorkspaces = 2;
  const bool pages = plan.device.gpu && plan.device.gpu->page_bytes > 0;
  return pages && !plan.own_loop() ? kKeptWorkspaces * workspace_bytes : 0;
}

TierBytes update_flags_bytes(const Plan& plan) {
  if (!plan.device_updates()) return {};
  return {block_bytes(plan, Tier::device, offload::kPageBytes), offload::kPageBytes, 0};
}

}  // namespace sluice::plan
