#include "step/step_model.hpp"

#include <algorithm>
#include <optional>

#include "sluice/base/bytes.hpp"
#include "sluice/models/gpt2_layout.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "step/home_bytes.hpp"
#include "step/pass_stages.hpp"

namespace sluice::plan {

using offload::pool_bytes;
using offload::Tier;

// Gaps between the blocks of an arena are at most 1/8 of the transient bytes. A test watches the
// gaps over the steps of models.
constexpr std::uint64_t kGapShare = 8;
// Mapped pages have gaps between small blocks only, which are a small part of the bytes of large
// models.
constexpr std::uint64_t kSmallGapShare = 64;
constexpr std::uint64_t kSmallGapBytes = 64 * kMiB;

namespace {

// The plan's measured or estimated workspaces, by unit; where it has none, the host device's
// formula.
std::vector<models::UnitWorkspace> workspaces_of(const Plan& plan) {
  std::vector<models::UnitWorkspace> workspaces;
  if (plan.own_loop()) return workspaces;
  const auto micro_batch = static_cast<std::uint64_t>(plan.config.micro_batch_size);
  const std::optional<models::UnitWorkspaces>& known = plan.device.workspaces;
  const std::size_t last = plan.layouts.size() - 1;
  for (std::size_t u = 0; u < plan.layouts.size(); ++u) {
    workspaces.push_back(known ? (u == 0      ? known->embedding
                                  : u == last ? known->head
                                              : known->block)
                               : models::unit_workspace(plan.model, u, micro_batch,
                                                        plan.compute_dtype,
                                                        plan.schedule.threads.compute));
    if (plan.config.gradient_dtype() != plan.compute_dtype && !(known && known->measured)) {
      const std::uint64_t sums = models::fp32_sum_bytes(plan.model, u, plan.device.gpu.has_value());
      workspaces.back().backward_bytes = checked_add(workspaces.back().backward_bytes, sums);
    }
  }
  return workspaces;
}

// The largest gradient of one parameter, which LibTorch makes before it adds it to the unit's.
std::uint64_t largest_gradient_bytes(const Plan& plan, const std::vector<std::size_t>& units) {
  std::uint64_t largest = 0;
  for (const std::size_t unit : units) {
    if (plan.layouts[unit].frozen) continue;
    for (const zero::ParamLayout& param : plan.layouts[unit].params)
      largest = std::max(largest, param.count);
  }
  return pool_bytes(checked_mul(largest, size_of(plan.compute_dtype)));
}

// Workspace and inputs in flight of each stage. They are independent of the placement.
std::vector<DeviceTransient> fixed_by_stage(const Plan& plan,
                                            const std::vector<std::vector<std::size_t>>& stages,
                                            const std::vector<models::UnitWorkspace>& workspaces) {
  if (plan.own_loop()) {
    DeviceTransient every;
    every.workspace_bytes = plan.own.activation_bytes.value_or(0);
    // The given size excludes memory that a GPU's libraries hold.
    if (plan.device.gpu && plan.own.activation_bytes)
      every.workspace_bytes = checked_add(every.workspace_bytes, models::kGpuHeldBytes);
    std::vector<DeviceTransient> fixed(stages.size(), every);
    if (!shares_budget_with_loop(plan)) return fixed;
    for (std::size_t stage = plan.own.calls.size(); stage < stages.size(); ++stage)
      fixed[stage].workspace_bytes = largest_gradient_bytes(plan, stages[stage]);
    return fixed;
  }
  const auto micro_batch = static_cast<std::uint64_t>(plan.config.micro_batch_size);
  const std::uint64_t hidden = block_bytes(plan, Tier::device, pool_bytes(plan.unit_input_bytes()));
  const std::uint64_t tokens_bytes =
      pool_bytes(checked_mul(micro_batch, static_cast<std::uint64_t>(plan.model.n_positions)) *
                 sizeof(std::int64_t));
  // With overlap, the next micro-batch's input arrives while this one computes, and two outputs may
  // still be leaving.
  const int in_flight = plan.config.sluice.overlap ? 2 : 1;
  const std::size_t last_unit = plan.layouts.size() - 1;
  // A GPU gets the tokens of a whole step at once.
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
    // Backward holds a unit's input and the gradient of its output; the next of each may already be
    // in transfer.
    const int per_get = backward && unit != last_unit ? 2 : 1;
    fixed[stage].input_bytes = static_cast<std::uint64_t>((per_get + 1) * in_flight) * hidden +
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
      saved_micro_batches_(plan.schedule.passes.each),
      more_in_last_pass_(plan.schedule.passes.last > plan.schedule.passes.each),
      last_unit_(plan.layouts.size() - 1),
      first_backward_(plan.own_loop() ? plan.own.calls.size() : last_unit_),
      one_rank_(plan.config.world_size == 1),
      in_place_(one_rank_ || plan.config.zero.stage < config::kStageOfShardedWeights),
      has_gaps_(plan.device.gpu.has_value()),
      page_bytes_(has_gaps_ ? plan.device.gpu->page_bytes : 0) {
  for (const zero::UnitLayout& layout : plan.layouts) {
    const auto full_bytes = [&](DType dtype) {
      const std::uint64_t flat = checked_mul(layout.flat_count, size_of(dtype));
      return block_bytes(plan, Tier::device, pool_bytes(flat));
    };
    full_bytes_.push_back(full_bytes(plan.compute_dtype));
    full_gradient_bytes_.push_back(full_bytes(plan.config.gradient_dtype()));
  }
  for (const int units_ahead : {0, 1})
    ends_of_ahead_.push_back(stage_ends_of_ahead(plan, stages_, units_ahead));
}

const std::vector<std::size_t>& StepModel::ends_of_ahead(int units_ahead) const {
  return ends_of_ahead_.at(static_cast<std::size_t>(units_ahead));
}

// Gathered copies of the units that this stage and the stages gathered ahead of it use.
std::uint64_t StepModel::gathered_at(const std::vector<UnitPlacement>& units, std::size_t stage,
                                     int units_ahead) const {
  const std::size_t end = ends_of_ahead(units_ahead)[stage];
  std::uint64_t sum = 0;
  for (std::size_t s = stage; s < end; ++s) {
    for (const std::size_t unit : stages_[s]) {
      const auto next_use = std::lower_bound(uses_[unit].begin(), uses_[unit].end(), stage);
      const bool counted = *next_use < s;
      const bool in_place = weights_used_at_home(units[unit]) && in_place_;
      if (!counted && !in_place) sum = checked_add(sum, full_bytes_[unit]);
    }
  }
  return sum;
}

// Flat gradients at a backward stage: its own and those of earlier stages that are still leaving.
std::uint64_t StepModel::gradients_at(const std::vector<UnitPlacement>& units, std::size_t stage,
                                      int in_flight) const {
  std::uint64_t sum = 0;
  for (int back = 0; back < in_flight; ++back) {
    const auto distance = static_cast<std::size_t>(back);
    if (stage < first_backward_ + distance) break;
    for (const std::size_t unit : stages_[stage - distance]) {
      if (units[unit].frozen) continue;
      const bool in_place = gradients_used_at_home(units[unit]) && one_rank_;
      if (!in_place && !units[unit].sums_on_device)
        sum = checked_add(sum, full_gradient_bytes_[unit]);
    }
  }
  return sum;
}

std::vector<StepModel::Retained> StepModel::saved_activations(std::size_t unit) const {
  if (unit == last_unit_) return {};  // its backward follows at once
  const models::UnitWorkspace& of = workspaces_[unit];
  const std::uint64_t others = checked_mul(saved_micro_batches_ - 1, of.kept_bytes);
  const std::size_t forward = uses_[unit].front();
  const std::size_t backward = uses_[unit].back();
  // At the unit's own stages, the workspace already counts one micro-batch. Saving activations
  // enlarges the forward workspace. Micro-batches that are not saved come after all that are: in
  // forward beside them, in backward when they are gone.
  const std::uint64_t keeping = of.keeping_bytes - of.forward_bytes;
  const std::uint64_t own = more_in_last_pass_ ? std::max(keeping, of.kept_bytes) : keeping;
  return {{{forward, forward + 1}, checked_add(others, own)},
          {{forward + 1, backward}, checked_add(others, of.kept_bytes)},
          {{backward, backward + 1}, others}};
}

std::uint64_t StepModel::gaps_between(std::uint64_t transient_bytes) const {
  if (!has_gaps_) return 0;
  const std::uint64_t arena = transient_bytes / kGapShare;
  if (page_bytes_ == 0) return arena;
  // The memory begins and ends with whole pages.
  return std::min(arena, transient_bytes / kSmallGapShare + kSmallGapBytes) + 2 * page_bytes_;
}

std::uint64_t StepModel::without_gaps(std::uint64_t room_bytes) const {
  std::uint64_t low = 0;
  std::uint64_t high = room_bytes;
  while (low < high) {
    const std::uint64_t middle = high - (high - low) / 2;
    if (gaps_between(middle) <= room_bytes - middle) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

std::vector<StepModel::Retained> StepModel::retained_weights(std::size_t unit,
                                                             const Overlap& overlap) const {
  const std::vector<std::size_t>& ends = ends_of_ahead(overlap.prefetch_units);
  std::vector<Retained> spans;
  for (std::size_t i = 0; i + 1 < uses_[unit].size(); ++i) {
    const std::size_t after_use = uses_[unit][i] + 1;
    const std::size_t next_use = uses_[unit][i + 1];
    std::size_t ahead = next_use;  // the first stage that gathers the next use ahead
    while (ahead > after_use && ends[ahead - 1] > next_use) --ahead;
    if (after_use < ahead) spans.push_back({{after_use, ahead}, full_bytes_[unit]});
  }
  return spans;
}

namespace {

// Sums retained bytes by stage, from spans of stages.
class RetainedByStage {
 public:
  explicit RetainedByStage(std::size_t stages) : begins_(stages + 1, 0), ends_(stages + 1, 0) {}
  void add(const std::vector<StepModel::Retained>& spans) {
    for (const auto& [span, size_bytes] : spans) {
      begins_[span.begin] = checked_add(begins_[span.begin], size_bytes);
      ends_[span.end] = checked_add(ends_[span.end], size_bytes);
    }
  }
  // Bytes retained at the next stage. The first call returns those of stage 0.
  std::uint64_t next() {
    retained_ = checked_add(retained_, begins_[stage_]) - ends_[stage_];
    ++stage_;
    return retained_;
  }

 private:
  std::vector<std::uint64_t> begins_;  // by stage: bytes that are retained from it on
  std::vector<std::uint64_t> ends_;    // by stage: bytes that are retained no longer
  std::uint64_t retained_ = 0;
  std::size_t stage_ = 0;
};

}  // namespace

std::vector<DeviceTransient> StepModel::by_stage(const std::vector<UnitPlacement>& units,
                                                 const Overlap& overlap) const {
  RetainedByStage weights(stages_.size());
  RetainedByStage activations(stages_.size());
  for (std::size_t u = 0; u < units.size(); ++u) {
    const bool in_place = weights_used_at_home(units[u]) && in_place_;
    if (units[u].gathered_until_backward && !in_place) weights.add(retained_weights(u, overlap));
    if (units[u].activations_saved) activations.add(saved_activations(u));
  }
  std::vector<DeviceTransient> stages = fixed_;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    stages[stage].gathered_bytes =
        checked_add(weights.next(), gathered_at(units, stage, overlap.prefetch_units));
    stages[stage].activation_bytes = activations.next();
    stages[stage].gradient_bytes = gradients_at(units, stage, overlap.gradients_in_flight);
    stages[stage].gap_bytes = gaps_between(stages[stage].total_without_gaps());
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

}  // namespace sluice::plan
