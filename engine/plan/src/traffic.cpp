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

// A unit whose weights are borrowed sends its gradients home twice and brings them back once; in a
// loop of the user's own every call of every micro-batch does.
std::vector<std::uint64_t> gradient_sends(const Plan& plan) {
  std::vector<std::uint64_t> sends(plan.layouts.size(), plan.own_loop() ? 0 : 1);
  for (const auto& call : plan.own_calls) {
    for (const std::size_t unit : call)
      sends[unit] += static_cast<std::uint64_t>(plan.config.gradient_accumulation_steps);
  }
  for (const zero::UnitLayout& layout : plan.layouts) {
    for (const auto& borrowed : layout.borrowed) ++sends[borrowed.unit];
  }
  return sends;
}

}  // namespace

void fill_traffic(Plan& plan) {
  const auto uses = stages_by_unit(pass_stages(plan), plan.layouts.size());
  const std::uint64_t passes =
      plan.own_loop() ? static_cast<std::uint64_t>(plan.config.gradient_accumulation_steps) : 1;
  const std::vector<std::uint64_t> sends_by_unit = gradient_sends(plan);
  const auto micro_batch = static_cast<std::uint64_t>(plan.config.micro_batch_size);
  const std::uint64_t hidden = hidden_bytes(plan.model, micro_batch, plan.compute_dtype);
  const auto ranks = static_cast<std::uint64_t>(plan.world_size);
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const UnitPlacement& unit = plan.units[u];
    const std::uint64_t count = plan.layouts[u].flat_count / ranks;
    const std::uint64_t compute = count * size_of(plan.compute_dtype);
    const std::uint64_t states = 3 * count * sizeof(float);
    if (unit.weights != Tier::device) {
      const std::uint64_t gathers =
          passes * static_cast<std::uint64_t>(gathers_per_step(plan, u, uses[u]));
      plan.h2d_per_step += gathers * compute;
      if (unit.weights == Tier::nvme) {
        plan.nvme_read_per_step += gathers * compute;
        if (!unit.frozen) plan.nvme_written_per_step += compute;
      }
    } else if (unit.states != Tier::device && !unit.frozen) {
      plan.h2d_per_step += compute;
    }
    if (unit.frozen) continue;
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
      plan.nvme_read_per_step += states;
      plan.nvme_written_per_step += states;
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
}

}  // namespace sluice::plan
