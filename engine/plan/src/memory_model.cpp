#include "memory_model.hpp"

#include <algorithm>

#include "sluice/base/bytes.hpp"
#include "sluice/models/gpt2_layout.hpp"
#include "sluice/offload/memory_pool.hpp"

namespace sluice::plan {

using offload::pool_bytes;
using offload::Tier;

InputsInFlight inputs_in_flight(bool overlap) {
  return overlap ? InputsInFlight{2, 2} : InputsInFlight{1, 1};
}

std::uint64_t hidden_bytes(const config::ModelConfig& model, std::uint64_t micro_batch,
                           DType dtype) {
  const std::uint64_t tokens =
      checked_mul(micro_batch, static_cast<std::uint64_t>(model.n_positions));
  return pool_bytes(
      checked_mul(checked_mul(tokens, static_cast<std::uint64_t>(model.n_embd)), size_of(dtype)));
}

std::vector<std::vector<std::size_t>> evaluation_stages(
    const std::vector<zero::UnitLayout>& layouts) {
  std::vector<std::vector<std::size_t>> stages;
  for (std::size_t u = 0; u < layouts.size(); ++u) {
    std::vector<std::size_t> used = {u};
    for (const auto& borrowed : layouts[u].borrowed) used.push_back(borrowed.unit);
    stages.push_back(std::move(used));
  }
  return stages;
}

std::vector<std::vector<std::size_t>> step_stages(const std::vector<zero::UnitLayout>& layouts) {
  auto stages = evaluation_stages(layouts);
  for (std::size_t u = layouts.size() - 1; u-- > 0;) stages.push_back({u});
  return stages;
}

namespace {

std::uint64_t full_bytes(const Plan& plan, std::size_t unit) {
  return pool_bytes(checked_mul(plan.layouts[unit].flat_count, size_of(plan.compute_dtype)));
}

// Gathered copies at a stage: its own units, those ahead, and those kept since the forward pass.
std::uint64_t gathered_at(const Plan& plan, const std::vector<std::vector<std::size_t>>& stages,
                          std::size_t stage, int units_ahead) {
  std::vector<bool> present(plan.layouts.size(), false);
  const std::size_t last =
      std::min(stages.size() - 1, stage + static_cast<std::size_t>(units_ahead));
  for (std::size_t s = stage; s <= last; ++s) {
    for (const std::size_t unit : stages[s]) present[unit] = true;
  }
  for (std::size_t u = 0; u < present.size(); ++u) {
    if (!plan.units[u].keep_gathered) continue;
    const auto uses = [&](std::size_t s) {
      return std::find(stages[s].begin(), stages[s].end(), u) != stages[s].end();
    };
    bool before = false;
    bool after = false;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      if (uses(s)) (s <= stage ? before : after) = true;
    }
    if (before && after) present[u] = true;
  }
  std::uint64_t sum = 0;
  for (std::size_t u = 0; u < present.size(); ++u) {
    const bool in_place = plan.units[u].weights == Tier::device && plan.world_size == 1;
    if (present[u] && !in_place) sum = checked_add(sum, full_bytes(plan, u));
  }
  return sum;
}

// Flat gradients at a backward stage: its own, and those of the stages before that are still
// leaving.
std::uint64_t gradients_at(const Plan& plan, const std::vector<std::vector<std::size_t>>& stages,
                           std::size_t stage, int in_flight) {
  const std::size_t first_backward = plan.layouts.size() - 1;
  if (stage < first_backward) return 0;
  std::uint64_t sum = 0;
  for (int back = 0; back < in_flight; ++back) {
    const auto distance = static_cast<std::size_t>(back);
    if (stage < first_backward + distance) break;
    for (const std::size_t unit : stages[stage - distance]) {
      const bool in_place = plan.units[unit].gradients == Tier::device && plan.world_size == 1;
      if (!in_place) sum = checked_add(sum, full_bytes(plan, unit));
    }
  }
  return sum;
}

}  // namespace

DeviceTransient device_transient(const Plan& plan, const Overlap& overlap) {
  const auto stages = step_stages(plan.layouts);
  const auto micro_batch = static_cast<std::uint64_t>(plan.config.micro_batch_size);
  const std::uint64_t hidden = hidden_bytes(plan.model, micro_batch, plan.compute_dtype);
  const std::uint64_t tokens_bytes =
      pool_bytes(checked_mul(micro_batch, static_cast<std::uint64_t>(plan.model.n_positions)) *
                 sizeof(std::int64_t));
  const InputsInFlight flight = inputs_in_flight(plan.config.sluice.overlap);
  const std::size_t last_unit = plan.layouts.size() - 1;

  DeviceTransient worst;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const std::size_t unit = stages[stage].front();
    const models::UnitWorkspace workspace = models::unit_workspace(
        plan.model, unit, micro_batch, size_of(plan.compute_dtype), plan.threads.compute);
    const bool backward = stage >= last_unit;
    DeviceTransient now;
    now.gathered_bytes = gathered_at(plan, stages, stage, overlap.prefetch_units);
    now.gradient_bytes = gradients_at(plan, stages, stage, overlap.gradients_in_flight);
    now.workspace_bytes = backward ? workspace.backward_bytes : workspace.forward_bytes;
    // Backward holds a unit's input and the gradient of its output; both may have a successor on
    // its way.
    const int per_get = backward && unit != last_unit ? 2 : 1;
    now.input_bytes =
        static_cast<std::uint64_t>(per_get * flight.gets + flight.puts) * hidden + 3 * tokens_bytes;
    if (now.total() > worst.total()) worst = now;
  }
  return worst;
}

UpdateTile update_tile(const std::vector<UnitPlacement>& units, std::uint64_t count) {
  UpdateTile tile{.count = count};
  for (const UnitPlacement& unit : units) {
    tile.has_states = tile.has_states || unit.states == Tier::nvme;
    tile.has_gradient = tile.has_gradient || unit.gradients == Tier::nvme;
    // Weights whose home is on the device go there through a tile when the states are not there
    // too.
    tile.has_weight = tile.has_weight || unit.weights == Tier::nvme ||
                      (unit.weights == Tier::device && unit.states != Tier::device);
  }
  return tile;
}

UpdateTileOffsets update_tile_offsets(const UpdateTile& tile, DType dtype) {
  UpdateTileOffsets offsets;
  const std::uint64_t state_bytes =
      align_up(checked_mul(tile.count, sizeof(float)), offload::kPageBytes);
  const std::uint64_t compute_bytes =
      align_up(checked_mul(tile.count, size_of(dtype)), offload::kPageBytes);
  for (std::uint64_t& state : offsets.states) {
    state = offsets.total;
    if (tile.has_states) offsets.total += state_bytes;
  }
  offsets.gradient = offsets.total;
  if (tile.has_gradient) offsets.total += compute_bytes;
  offsets.weight = offsets.total;
  if (tile.has_weight) offsets.total += compute_bytes;
  return offsets;
}

}  // namespace sluice::plan
