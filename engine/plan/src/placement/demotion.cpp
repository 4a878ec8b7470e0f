#include "placement/demotion.hpp"

#include <algorithm>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "step/home_bytes.hpp"

namespace sluice::plan {

using offload::pool_bytes;
using offload::Tier;

namespace {

// Items by kind; within a kind, the last unit comes first.
struct Items {
  std::vector<Item> weights, gradients, states, inputs;
};

// All items on a tier.
Items items_on(Plan& plan, Tier tier) {
  Items items;
  for (std::size_t u = plan.units.size(); u-- > 0;) {
    UnitPlacement& unit = plan.units[u];
    if (unit.weights == tier) items.weights.push_back({Kind::weights, &unit.weights});
    if (unit.gradients == tier && !unit.gradients_use_slots && !unit.frozen)
      items.gradients.push_back({Kind::gradients, &unit.gradients});
    if (unit.states == tier && !unit.frozen) items.states.push_back({Kind::states, &unit.states});
    for (Tier& input : unit.inputs) {
      if (input == tier) items.inputs.push_back({Kind::inputs, &input});
    }
  }
  return items;
}

}  // namespace

std::vector<Item> items_in_order(Plan& plan, Tier from, const Preferences& preferences) {
  const Items items = items_on(plan, from);
  std::vector<Item> all;
  const auto append = [&](const std::vector<Item>& more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  if (from == Tier::device) {
    // Gradients whose states are elsewhere are here to save time, unless several passes add them
    // up: then they stay. Saved activations hold the inputs.
    const bool states_here =
        plan.config.zero.offload_optimizer.device == config::OffloadConfig::Device::none;
    const bool may_leave = !plan.gradients_summed_on_device();
    if (may_leave && !states_here) append(items.gradients);
    if (plan.config.sluice.activations != config::Activations::keep) append(items.inputs);
    if (may_leave && states_here) append(items.gradients);
    append(items.states);
    append(items.weights);
    return all;
  }
  if (preferences.weights_leave_first) append(items.weights);
  append(items.gradients);
  append(items.states);
  if (!preferences.weights_leave_first) append(items.weights);
  append(items.inputs);
  return all;
}

std::uint64_t home_bytes(const Plan& plan, Tier tier) {
  const std::uint64_t hidden = block_bytes(plan, tier, pool_bytes(plan.unit_input_bytes()));
  std::uint64_t sum = 0;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const UnitPlacement& unit = plan.units[u];
    if (unit.weights == tier)
      sum = checked_add(sum, block_bytes(plan, tier, weights_bytes(plan, u)));
    if (unit.gradients == tier && !unit.gradients_use_slots && !unit.frozen)
      sum = checked_add(sum, block_bytes(plan, tier, gradient_bytes(plan, u)));
    if (unit.sums_on_device && tier == Tier::device) sum = checked_add(sum, sum_bytes(plan, u));
    if (unit.states == tier && !unit.frozen) sum = checked_add(sum, state_memory_bytes(plan, u));
    const auto inputs = std::count(unit.inputs.begin(), unit.inputs.end(), tier);
    sum = checked_add(sum, checked_mul(static_cast<std::uint64_t>(inputs), hidden));
  }
  return sum;
}

Demotion::Demotion(std::vector<Item> items, Tier from, Tier to)
    : items_(std::move(items)), from_(from), to_(to) {}

void Demotion::until(const std::function<std::uint64_t()>& need, std::uint64_t budget) {
  demote(0);
  std::uint64_t least = need();
  if (least <= budget) return;
  // Rings for the demoted items can be larger than the items. So demoting fewer kinds may fit where
  // demoting all does not.
  std::size_t high = 0;
  for (const std::size_t count : counts_of_kinds()) {
    demote(count);
    const std::uint64_t left = need();
    if (left >= least) continue;
    high = count;
    least = left;
  }
  demote(high);
  if (least > budget) return;
  std::size_t low = 1;  // each demotion after the first makes the need smaller
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    demote(middle);
    if (need() <= budget) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  demote(low);
}

void Demotion::demote(std::size_t count) {
  for (; count_ < count; ++count_) *items_[count_].home = to_;
  for (; count_ > count; --count_) *items_[count_ - 1].home = from_;
}

// The numbers of demotions after which all items of a kind have left.
std::vector<std::size_t> Demotion::counts_of_kinds() const {
  std::vector<std::size_t> counts;
  for (std::size_t count = 1; count <= items_.size(); ++count) {
    if (count == items_.size() || items_[count].kind != items_[count - 1].kind)
      counts.push_back(count);
  }
  return counts;
}

}  // namespace sluice::plan
