#include "placement/retained_units.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "sluice/base/bytes.hpp"
#include "sluice/base/text.hpp"
#include "step/home_bytes.hpp"

namespace sluice::plan {

using offload::Tier;

namespace {

// A loop of the user's own has activations that nobody has counted. They get seven eighths.
constexpr std::uint64_t kShareOfSums = 8;

// The bytes of each stage without gaps, and the largest of them. It is a segment tree: adding to a
// run of S stages costs O(log S). The planner tries every unit, each over most of the stages.
class StageTotals {
 public:
  explicit StageTotals(const std::vector<DeviceTransient>& stages) : count_(stages.size()) {
    highest_.resize(4 * count_);
    added_.resize(4 * count_);
    for (std::size_t s = 0; s < count_; ++s) add({s, s + 1}, stages[s].total_without_gaps());
  }
  std::uint64_t highest() const { return highest_[kRoot]; }
  void add(const StepModel::Span& span, std::uint64_t size_bytes) {
    change(kRoot, {0, count_}, span, size_bytes);
  }
  // Subtracts bytes that add() added to this span before.
  void take_back(const StepModel::Span& span, std::uint64_t size_bytes) {
    change(kRoot, {0, count_}, span, 0 - size_bytes);  // unsigned: modulo 2^64, as the sums
  }

 private:
  static constexpr std::size_t kRoot = 1;  // children of node n: 2n and 2n + 1

  void change(std::size_t node, const StepModel::Span& covers, const StepModel::Span& span,
              std::uint64_t by) {
    if (span.end <= covers.begin || covers.end <= span.begin) return;
    if (span.begin <= covers.begin && covers.end <= span.end) {
      highest_[node] += by;
      added_[node] += by;
      return;
    }
    const std::size_t middle = covers.begin + (covers.end - covers.begin) / 2;
    change(2 * node, {covers.begin, middle}, span, by);
    change(2 * node + 1, {middle, covers.end}, span, by);
    highest_[node] = added_[node] + std::max(highest_[2 * node], highest_[2 * node + 1]);
  }

  std::size_t count_;
  std::vector<std::uint64_t>
      highest_;  // by node: maximum over its stages, without its ancestors' added_
  std::vector<std::uint64_t> added_;  // by node: added to each of its stages
};

class Retainer {
 public:
  Retainer(Plan& plan, const StepModel& model, const Overlap& overlap, std::uint64_t homes_bytes)
      : plan_(plan),
        model_(model),
        overlap_(overlap),
        room_bytes_(model.without_gaps(*plan.budget.device_bytes - homes_bytes)),
        totals_(model.by_stage(plan.units, overlap)) {}

  // Retains the unit's gathered weights if max_live_parameters and the device budget allow it.
  bool try_weights(std::size_t unit) {
    const std::uint64_t count = plan_.layouts[unit].flat_count;
    if (live_count_ + count > plan_.config.zero.max_live_parameters) return false;
    if (!fits(model_.retained_weights(unit, overlap_))) return false;
    live_count_ += count;
    plan_.units[unit].gathered_until_backward = true;
    return true;
  }
  // Saves the unit's activations if the device budget allows it. LibTorch's graph holds the unit's
  // input and output, so both must have their home on the device.
  bool try_activations(std::size_t unit) {
    if (!inputs_on_device(unit) || !inputs_on_device(unit + 1)) return false;
    if (!fits(model_.saved_activations(unit))) return false;
    plan_.units[unit].activations_saved = true;
    return true;
  }

 private:
  bool inputs_on_device(std::size_t unit) const {
    const std::vector<Tier>& inputs = plan_.units[unit].inputs;
    return std::all_of(inputs.begin(), inputs.end(), [](Tier t) { return t == Tier::device; });
  }
  // Adds these bytes if they fit into the room.
  bool fits(const std::vector<StepModel::Retained>& spans) {
    for (const auto& [span, size_bytes] : spans) totals_.add(span, size_bytes);
    if (totals_.highest() <= room_bytes_) return true;
    for (const auto& [span, size_bytes] : spans) totals_.take_back(span, size_bytes);
    return false;
  }

  Plan& plan_;
  const StepModel& model_;
  const Overlap overlap_;
  const std::uint64_t room_bytes_;  // without gaps
  StageTotals totals_;
  std::uint64_t live_count_ = 0;
};

void save_activations(const Plan& plan, Retainer& retainer) {
  for (std::size_t u = plan.units.size() - 1; u-- > 0;)
    if (!retainer.try_activations(u)) break;
}

void retain_weights(const Plan& plan, Retainer& retainer) {
  std::uint64_t distance = 0;  // elements used between a unit's forward and its backward
  for (std::size_t u = plan.units.size() - 1; u-- > 0;) {
    distance += 2 * plan.layouts[u + 1].flat_count;
    if (distance > plan.config.zero.max_reuse_distance) break;
    if (weights_used_at_home(plan.units[u]) || plan.units[u].gathered_until_backward) continue;
    if (!retainer.try_weights(u)) break;
  }
}

// Backwards of a step that add to a unit's gradient, as far as they are known: a loop may call a
// unit several times in a micro-batch.
std::int64_t backwards_of(const Plan& plan, std::size_t unit) {
  return plan.own.backwards[unit] * plan.config.gradient_accumulation_steps;
}

bool can_add_up(const UnitPlacement& unit) {
  return !unit.frozen && unit.gradients != Tier::device;
}

std::uint64_t bytes_of_all_sums(const Plan& plan) {
  std::uint64_t sum = 0;
  for (std::size_t u = 0; u < plan.units.size(); ++u)
    if (can_add_up(plan.units[u])) sum += sum_bytes(plan, u);
  return sum;
}

}  // namespace

void keep_gradient_sums(Plan& plan, std::uint64_t room_bytes) {
  const bool has_own_memory = !plan.units.front().uses_host_homes;
  if (!plan.own_loop() || !has_own_memory || plan.config.world_size > 1) return;
  const std::uint64_t budget = *plan.budget.device_bytes;
  if (!plan.own.activation_bytes) room_bytes = std::min(room_bytes, budget / kShareOfSums);
  // Where all have room, a unit that is called once has it too: the loop may call it again.
  const bool all = bytes_of_all_sums(plan) <= std::min(room_bytes, budget / kShareOfSums);
  std::uint64_t used = 0;
  std::size_t units = 0;
  for (std::size_t u = plan.units.size(); u-- > 0;) {
    UnitPlacement& unit = plan.units[u];
    const std::uint64_t size_bytes = sum_bytes(plan, u);
    const bool adds_up = can_add_up(unit) && (all || backwards_of(plan, u) > 1);
    if (!adds_up || used + size_bytes > room_bytes) continue;
    unit.sums_on_device = true;
    used += size_bytes;
    ++units;
  }
  if (units > 0)
    plan.choices.push_back("gradients of " + std::to_string(units) +
                           " units add up on the device, " + format_bytes(used) +
                           ", and go home with the last backward of a step; \"device_bytes\" "
                           "limits this");
}

void retain_units(Plan& plan, const StepModel& model, const Overlap& overlap,
                  const Preferences& preferences, std::uint64_t homes_bytes) {
  const config::ZeroConfig& zero = plan.config.zero;
  // The loop's activations, whose size is unknown, need the room.
  if (plan.own_loop() && !plan.own.activation_bytes) return;
  Retainer retainer(plan, model, overlap, homes_bytes);
  std::uint64_t persistent = 0;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const std::uint64_t count = plan.layouts[u].flat_count;
    if (weights_used_at_home(plan.units[u]) || count > zero.param_persistence_threshold) continue;
    if (persistent + count > zero.model_persistence_threshold) break;
    if (retainer.try_weights(u)) persistent += count;
  }
  // Saved activations spare a unit's recompute, a quarter of its time. Retained weights spare the
  // part of a gather that computing does not hide.
  const bool automatic =
      !plan.own_loop() && plan.config.sluice.activations == config::Activations::automatic;
  const bool weights_first = automatic && preferences.retain_weights_first;
  if (weights_first) retain_weights(plan, retainer);
  if (automatic) save_activations(plan, retainer);
  if (!weights_first) retain_weights(plan, retainer);
}

}  // namespace sluice::plan
