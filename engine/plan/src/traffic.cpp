#include "traffic.hpp"

#include <vector>

#include "memory_model.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/dtype.hpp"

namespace sluice::plan {

using offload::Tier;

namespace {

// How often a unit is gathered in a step: it stays between stages that follow within the prefetch
// distance, or always when it is kept.
int gathers_per_step(const Plan& plan, std::size_t unit, const std::vector<std::size_t>& uses) {
  int gathers = 0;
  std::size_t last_use = 0;
  for (const std::size_t stage : uses) {
    const bool still_there =
        gathers > 0 && (plan.units[unit].keep_gathered ||
                        stage - last_use <= static_cast<std::size_t>(plan.prefetch_units) + 1);
    if (!still_there) ++gathers;
    last_use = stage;
  }
  return gathers;
}

// A unit whose weights are borrowed sends its gradients home twice and brings them back once.
std::vector<std::uint64_t> gradient_sends(const std::vector<zero::UnitLayout>& layouts) {
  std::vector<std::uint64_t> sends(layouts.size(), 1);
  for (const zero::UnitLayout& layout : layouts) {
    for (const auto& borrowed : layout.borrowed) ++sends[borrowed.unit];
  }
  return sends;
}

// Of one unit's states on NVMe, in one update.
struct StateTraffic {
  std::uint64_t read_bytes = 0;
  std::uint64_t cached_bytes = 0;   // not read, since the cache has them
  std::uint64_t written_bytes = 0;  // in a step that is committed
  std::uint64_t kept_bytes = 0;     // of these, what is in memory as well, until a commit
};
StateTraffic state_traffic(const Plan& plan, std::size_t unit, std::uint64_t count) {
  const models::StateFormat& format = plan.state_format;
  StateTraffic traffic;
  for (std::size_t part = 0; part < format.part_count(); ++part) {
    const std::uint64_t bytes = count * format.part(part).element_bytes;
    const PartPlace place = place_of_part(plan.units[unit], format, part);
    traffic.written_bytes += bytes;
    if (place == PartPlace::tile) traffic.read_bytes += bytes;
    if (place == PartPlace::memory) traffic.cached_bytes += bytes;
    if (place != PartPlace::tile) traffic.kept_bytes += bytes;
  }
  // States of which some are in memory only are never committed in their directory.
  if (!plan.states_all_on_nvme()) traffic.written_bytes -= traffic.kept_bytes;
  return traffic;
}

}  // namespace

void fill_traffic(Plan& plan) {
  const auto uses = stages_by_unit(step_stages(plan.layouts), plan.layouts.size());
  const std::vector<std::uint64_t> sends_by_unit = gradient_sends(plan.layouts);
  const auto micro_batch = static_cast<std::uint64_t>(plan.config.micro_batch_size);
  const std::uint64_t hidden = hidden_bytes(plan.model, micro_batch, plan.compute_dtype);
  const auto ranks = static_cast<std::uint64_t>(plan.world_size);
  std::uint64_t kept_until_commit = 0;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const UnitPlacement& unit = plan.units[u];
    const std::uint64_t count = plan.layouts[u].flat_count / ranks;
    const std::uint64_t compute = count * size_of(plan.compute_dtype);
    if (unit.weights != Tier::device) {
      const auto gathers = static_cast<std::uint64_t>(gathers_per_step(plan, u, uses[u]));
      plan.h2d_per_step += gathers * compute;
      if (unit.weights == Tier::nvme) {
        plan.nvme_read_per_step += gathers * compute;
        plan.nvme_written_per_step += compute;
      }
    } else if (unit.states != Tier::device) {
      plan.h2d_per_step += compute;
    }
    const std::uint64_t sends = sends_by_unit[u];
    if (unit.gradients != Tier::device) {
      plan.d2h_per_step += sends * compute;
      plan.h2d_per_step += (sends - 1) * compute;
      if (unit.gradients == Tier::nvme) {
        plan.nvme_written_per_step += sends * compute;
        plan.nvme_read_per_step += sends * compute;  // back for the sum, and for the update
      }
    }
    if (unit.states == Tier::nvme) {
      const StateTraffic states = state_traffic(plan, u, count);
      plan.nvme_read_per_step += states.read_bytes;
      plan.nvme_cached_per_step += states.cached_bytes;
      plan.nvme_written_per_step += states.written_bytes;
      kept_until_commit += states.kept_bytes;
    }
    for (const Tier input : unit.inputs) {
      if (input == Tier::device) continue;
      // Out as the unit's input, back for the backward pass; for all but the last use the same for
      // its gradient. The forward pass reads it as well.
      const std::uint64_t in = u + 1 == plan.units.size() ? 2 : 3;
      plan.d2h_per_step += 2 * hidden;
      plan.h2d_per_step += in * hidden;
      if (input == Tier::nvme) {
        plan.nvme_written_per_step += 2 * hidden;
        plan.nvme_read_per_step += in * hidden;
      }
    }
  }
  plan.nvme_written_between_commits_per_step = plan.nvme_written_per_step;
  if (plan.states_all_on_nvme() && plan.config.sluice.commit_every > 1)
    plan.nvme_written_between_commits_per_step -= kept_until_commit;
}

}  // namespace sluice::plan
