#include "step/step_model.hpp"

#include <algorithm>

#include "sluice/base/bytes.hpp"
#include "sluice/models/gpt2_layout.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "sluice/plan/stages.hpp"
#include "sluice/plan/tile_layout.hpp"

namespace sluice::plan {

using offload::pool_bytes;
using offload::Tier;

// Of what comes and goes in one block of memory, the part that is left between blocks at most: a
// test watches it over the steps of models.
constexpr std::uint64_t kGapShare = 8;

InputsInFlight inputs_in_flight(bool overlap) {
  return overlap ? InputsInFlight{2, 2} : InputsInFlight{1, 1};
}

std::uint64_t hidden_bytes(const config::ModelConfig& model, std::uint64_t micro_batch,
                           DType dtype) {
  const std::uint64_t tokens =
      checked_mul(micro_batch, static_cast<std::uint64_t>(model.n_positions));
  return checked_mul(checked_mul(tokens, static_cast<std::uint64_t>(model.n_embd)), size_of(dtype));
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

std::vector<std::vector<std::size_t>> pass_stages(const Plan& plan) {
  if (!plan.own_loop()) return step_stages(plan.layouts);
  auto stages = plan.own.calls;
  stages.insert(stages.end(), plan.own.calls.rbegin(), plan.own.calls.rend());
  return stages;
}

std::vector<std::vector<std::size_t>> stages_by_unit(
    const std::vector<std::vector<std::size_t>>& stages, std::size_t unit_count) {
  std::vector<std::vector<std::size_t>> uses(unit_count);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (const std::size_t unit : stages[s]) uses[unit].push_back(s);
  }
  return uses;
}

namespace {

// What is measured, else the formula of the host device, else a GPU's estimate.
std::vector<models::UnitWorkspace> workspaces_of(const Plan& plan) {
  std::vector<models::UnitWorkspace> workspaces;
  if (plan.own_loop()) return workspaces;
  const auto micro_batch = static_cast<std::uint64_t>(plan.config.micro_batch_size);
  const std::uint64_t element_bytes = size_of(plan.compute_dtype);
  const std::optional<models::UnitWorkspaces>& known = plan.device.workspaces;
  const std::size_t last = plan.layouts.size() - 1;
  for (std::size_t u = 0; u < plan.layouts.size(); ++u) {
    workspaces.push_back(known ? (u == 0      ? known->embedding
                                  : u == last ? known->head
                                              : known->block)
                               : models::unit_workspace(plan.model, u, micro_batch, element_bytes,
                                                        plan.schedule.threads.compute));
  }
  return workspaces;
}

// Workspace and inputs in flight of each stage; they depend on no placement.
std::vector<DeviceTransient> fixed_by_stage(const Plan& plan,
                                            const std::vector<std::vector<std::size_t>>& stages,
                                            const std::vector<models::UnitWorkspace>& workspaces) {
  if (plan.own_loop()) {
    DeviceTransient every;
    every.workspace_bytes = plan.own.activation_bytes.value_or(0);
    // What is given is what the loop computes with, not what a GPU's libraries keep.
    if (plan.device.gpu && plan.own.activation_bytes)
      every.workspace_bytes = checked_add(every.workspace_bytes, models::kGpuHeldBytes);
    return std::vector<DeviceTransient>(stages.size(), every);
  }
  const auto micro_batch = static_cast<std::uint64_t>(plan.config.micro_batch_size);
  const std::uint64_t hidden =
      pool_bytes(hidden_bytes(plan.model, micro_batch, plan.compute_dtype));
  const std::uint64_t tokens_bytes =
      pool_bytes(checked_mul(micro_batch, static_cast<std::uint64_t>(plan.model.n_positions)) *
                 sizeof(std::int64_t));
  const InputsInFlight flight = inputs_in_flight(plan.config.sluice.overlap);
  const std::size_t last_unit = plan.layouts.size() - 1;
  // On a GPU the tokens of a whole step are brought there at once.
  const std::uint64_t token_buffers =
      plan.device.gpu ? 3 + 2 * static_cast<std::uint64_t>(plan.config.gradient_accumulation_steps)
                      : 3;
  const std::uint64_t held = plan.device.workspaces ? plan.device.workspaces->held_bytes : 0;
  std::vector<DeviceTransient> fixed(stages.size());
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const std::size_t unit = stages[stage].front();
    const models::UnitWorkspace& workspace = workspaces[unit];
    const bool backward = stage >= last_unit;
    fixed[stage].workspace_bytes =
        checked_add(held, backward ? workspace.backward_bytes : workspace.forward_bytes);
    // Backward holds a unit's input and the gradient of its output; both may have a successor on
    // its way.
    const int per_get = backward && unit != last_unit ? 2 : 1;
    fixed[stage].input_bytes =
        static_cast<std::uint64_t>(per_get * flight.gets + flight.puts) * hidden +
        checked_mul(token_buffers, tokens_bytes);
  }
  return fixed;
}

}  // namespace

StepModel::StepModel(const Plan& plan)
    : stages_(pass_stages(plan)),
      uses_(stages_by_unit(stages_, plan.layouts.size())),
      workspaces_(workspaces_of(plan)),
      fixed_(fixed_by_stage(plan, stages_, workspaces_)),
      micro_batches_(plan.schedule.micro_batches_per_pass),
      last_unit_(plan.layouts.size() - 1),
      first_backward_(plan.own_loop() ? plan.own.calls.size() : last_unit_),
      one_rank_(plan.config.world_size == 1),
      one_block_(plan.device.gpu.has_value()) {
  for (const zero::UnitLayout& layout : plan.layouts) {
    full_bytes_.push_back(pool_bytes(checked_mul(layout.flat_count, size_of(plan.compute_dtype))));
  }
}

// Copies of the units that this stage uses, and of those that the stages ahead use.
std::uint64_t StepModel::gathered_at(const std::vector<UnitPlacement>& units, std::size_t stage,
                                     int units_ahead) const {
  const std::size_t last =
      std::min(stages_.size() - 1, stage + static_cast<std::size_t>(units_ahead));
  std::uint64_t sum = 0;
  for (std::size_t s = stage; s <= last; ++s) {
    for (const std::size_t unit : stages_[s]) {
      const auto next_use = std::lower_bound(uses_[unit].begin(), uses_[unit].end(), stage);
      const bool counted = *next_use < s;
      const bool in_place = units[unit].weights == Tier::device && one_rank_;
      if (!counted && !in_place) sum = checked_add(sum, full_bytes_[unit]);
    }
  }
  return sum;
}

// Flat gradients at a backward stage: its own, and those of the stages before that are still
// leaving.
std::uint64_t StepModel::gradients_at(const std::vector<UnitPlacement>& units, std::size_t stage,
                                      int in_flight) const {
  std::uint64_t sum = 0;
  for (int back = 0; back < in_flight; ++back) {
    const auto distance = static_cast<std::size_t>(back);
    if (stage < first_backward_ + distance) break;
    for (const std::size_t unit : stages_[stage - distance]) {
      if (units[unit].frozen) continue;
      const bool in_place = units[unit].gradients == Tier::device && one_rank_;
      if (!in_place) sum = checked_add(sum, full_bytes_[unit]);
    }
  }
  return sum;
}

std::vector<StepModel::Kept> StepModel::kept_activations(std::size_t unit) const {
  if (unit == last_unit_) return {};  // its backward follows at once
  const models::UnitWorkspace& of = workspaces_[unit];
  const std::uint64_t others = checked_mul(micro_batches_ - 1, of.kept_bytes);
  const std::size_t forward = uses_[unit].front();
  const std::size_t backward = uses_[unit].back();
  // At its own stages one micro-batch's are the workspace's: in the forward one it grows.
  return {{{forward, forward + 1}, checked_add(others, of.keeping_bytes - of.forward_bytes)},
          {{forward + 1, backward}, checked_add(others, of.kept_bytes)},
          {{backward, backward + 1}, others}};
}

std::uint64_t StepModel::with_gaps(std::uint64_t kept_bytes) const {
  return one_block_ ? checked_add(kept_bytes, kept_bytes / kGapShare + 1) : kept_bytes;
}

std::vector<StepModel::Kept> StepModel::kept_weights(std::size_t unit,
                                                     const Overlap& overlap) const {
  const auto ahead = static_cast<std::size_t>(overlap.prefetch_units);
  std::vector<Kept> spans;
  for (std::size_t i = 0; i + 1 < uses_[unit].size(); ++i) {
    const std::size_t after_use = uses_[unit][i] + 1;
    const std::size_t next_use = uses_[unit][i + 1];
    if (after_use + ahead < next_use)
      spans.push_back({{after_use, next_use - ahead}, full_bytes_[unit]});
  }
  return spans;
}

namespace {

// What is kept at each stage, from spans of stages.
class KeptByStage {
 public:
  explicit KeptByStage(std::size_t stages) : begins_(stages + 1, 0), ends_(stages + 1, 0) {}
  void add(const std::vector<StepModel::Kept>& more) {
    for (const auto& [span, size_bytes] : more) {
      begins_[span.begin] = checked_add(begins_[span.begin], size_bytes);
      ends_[span.end] = checked_add(ends_[span.end], size_bytes);
    }
  }
  // Of the stages, one after the other.
  std::uint64_t next() {
    kept_ = checked_add(kept_, begins_[stage_]) - ends_[stage_];
    ++stage_;
    return kept_;
  }

 private:
  std::vector<std::uint64_t> begins_;  // how much more than at the stage before
  std::vector<std::uint64_t> ends_;    // how much less
  std::uint64_t kept_ = 0;
  std::size_t stage_ = 0;
};

}  // namespace

std::vector<DeviceTransient> StepModel::by_stage(const std::vector<UnitPlacement>& units,
                                                 const Overlap& overlap) const {
  KeptByStage weights(stages_.size());
  KeptByStage activations(stages_.size());
  for (std::size_t u = 0; u < units.size(); ++u) {
    const bool in_place = units[u].weights == Tier::device && one_rank_;
    if (units[u].gathered_until_backward && !in_place) weights.add(kept_weights(u, overlap));
    if (units[u].activations_saved) activations.add(kept_activations(u));
  }
  std::vector<DeviceTransient> stages = fixed_;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    stages[stage].gathered_bytes =
        checked_add(weights.next(), gathered_at(units, stage, overlap.prefetch_units));
    stages[stage].activation_bytes = activations.next();
    stages[stage].gradient_bytes = gradients_at(units, stage, overlap.gradients_in_flight);
    if (one_block_) stages[stage].gap_bytes = stages[stage].total() / kGapShare;
  }
  return stages;
}

DeviceTransient StepModel::peak(const std::vector<UnitPlacement>& units,
                                const Overlap& overlap) const {
  const std::vector<DeviceTransient> stages = by_stage(units, overlap);
  return *std::max_element(
      stages.begin(), stages.end(),
      [](const DeviceTransient& a, const DeviceTransient& b) { return a.total() < b.total(); });
}

std::uint64_t shard_count(const Plan& plan, std::size_t unit) {
  return plan.layouts[unit].flat_count / static_cast<std::uint64_t>(plan.config.world_size);
}

std::uint64_t part_bytes(const Plan& plan, std::size_t unit, std::size_t part) {
  return pool_bytes(
      checked_mul(shard_count(plan, unit), plan.state_format.part(part).element_bytes));
}

bool states_copied_to_tile(const UnitPlacement& unit) {
  return unit.states == Tier::device && !unit.device_host_addressable;
}

PartPlace place_of_part(const UnitPlacement& unit, const models::StateFormat& format,
                        std::size_t part) {
  if (states_copied_to_tile(unit)) return PartPlace::tile;
  const bool weights_at_hand =
      unit.weights == Tier::host || (unit.weights == Tier::device && unit.states == Tier::device);
  if (format.is_split() && part == 0 && weights_at_hand) return PartPlace::weights;
  if (unit.states != Tier::nvme || unit.cached[part]) return PartPlace::memory;
  return PartPlace::tile;
}

bool reads_states_from_nvme(const UnitPlacement& unit, const models::StateFormat& format) {
  if (unit.states != Tier::nvme) return false;
  for (std::size_t part = 0; part < format.part_count(); ++part) {
    if (!unit.frozen && place_of_part(unit, format, part) == PartPlace::tile) return true;
  }
  return false;
}

bool update_sends_weights(const UnitPlacement& unit) {
  return unit.weights == Tier::nvme ||
         (unit.weights == Tier::device &&
          (unit.states != Tier::device || states_copied_to_tile(unit)));
}

bool tile_holds_gradient(const UnitPlacement& unit) {
  return unit.gradients == Tier::nvme ||
         (unit.gradients == Tier::device && !unit.device_host_addressable);
}

bool tile_holds_weights(const UnitPlacement& unit, const models::StateFormat& format) {
  return !format.is_split() && update_sends_weights(unit);
}

TileLayout tile_layout(const std::vector<UnitPlacement>& units, const models::StateFormat& format,
                       DType dtype, std::uint64_t count) {
  const auto any = [&](const auto& needs) {
    return std::any_of(units.begin(), units.end(),
                       [&](const UnitPlacement& unit) { return !unit.frozen && needs(unit); });
  };
  TileLayout tile;
  const auto add = [&](bool needed, std::size_t element_bytes) {
    const std::uint64_t offset = tile.total;
    if (needed) tile.total += align_up(checked_mul(count, element_bytes), offload::kPageBytes);
    return offset;
  };
  for (std::size_t part = 0; part < format.part_count(); ++part) {
    const bool needed = any([&](const UnitPlacement& unit) {
      return place_of_part(unit, format, part) == PartPlace::tile;
    });
    tile.states[part] = add(needed, format.part(part).element_bytes);
  }
  tile.gradient = add(any(tile_holds_gradient), size_of(dtype));
  tile.weight =
      add(any([&](const UnitPlacement& unit) { return tile_holds_weights(unit, format); }),
          size_of(dtype));
  // What is all in memory and moves still: a tile stands for a transfer.
  const bool moves = any([](const UnitPlacement& unit) {
    return unit.states == Tier::nvme || update_sends_weights(unit);
  });
  if (tile.total == 0 && moves) tile.total = offload::kPageBytes;
  return tile;
}

}  // namespace sluice::plan
