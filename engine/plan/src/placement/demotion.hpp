#pragma once
// Demotion: which items leave a tier when its budget is used up, and in which order.
// Thread-compatible: callers synchronise.

#include <cstdint>
#include <functional>
#include <vector>

#include "placement/preferences.hpp"
#include "sluice/plan/plan.hpp"

namespace sluice::plan {

enum class Kind { weights, gradients, states, inputs };

// Bytes of one unit and kind, with their home in a plan.
struct Item {
  Kind kind;
  offload::Tier* home;  // in the plan, which outlives the item
};

// The items that may leave tier `from`, in order: items with the least traffic per byte held leave
// first. Unit inputs leave host memory last, because they move four times a step. They leave the
// device first, because the configuration asked for weights and states there, not for inputs.
std::vector<Item> items_in_order(Plan& plan, offload::Tier from, const Preferences& preferences);

// Bytes of all items on a tier, including those that may not leave it.
std::uint64_t home_bytes(const Plan& plan, offload::Tier tier);

// Moves items from one tier to the next, in the order of the list.
class Demotion {
 public:
  Demotion(std::vector<Item> items, offload::Tier from, offload::Tier to);

  // Demotes the fewest items that bring `need` down to `budget`. Where no number of items does, it
  // demotes as many as bring `need` to its minimum.
  void until(const std::function<std::uint64_t()>& need, std::uint64_t budget);
  // Demotes the first `count` items and brings the others back.
  void demote(std::size_t count);
  std::size_t count() const { return count_; }

 private:
  std::vector<std::size_t> counts_of_kinds() const;

  const std::vector<Item> items_;
  const offload::Tier from_;
  const offload::Tier to_;
  std::size_t count_ = 0;
};

}  // namespace sluice::plan
