#pragma once
// What leaves a tier when its budget is used up, and in which order. Not installed.

#include <cstdint>
#include <functional>
#include <vector>

#include "placement/preferences.hpp"
#include "sluice/plan/plan.hpp"

namespace sluice::plan {

// Of a rank's weights of a unit, or its gradients, in a pool.
std::uint64_t compute_bytes(const Plan& plan, std::size_t unit);

enum class Kind { weights, gradients, states, inputs };

// One thing with a home: where it is now, how large it is.
struct Item {
  Kind kind;
  offload::Tier* home;
  std::uint64_t size_bytes;
};

// Those that may leave a tier when its budget is used up, in that order: what moves least per byte
// held leaves first. Unit inputs are demoted last from host (four transfers a step), but first from
// the device, where weights and states were asked for by the configuration and inputs were not.
std::vector<Item> items_in_order(Plan& plan, offload::Tier from, const Preferences& preferences);

// Of all that has its home on a tier, whether it may leave it or not.
std::uint64_t home_bytes(Plan& plan, offload::Tier tier);

// Items that leave one tier for the next, the first ones first.
class Demotion {
 public:
  Demotion(std::vector<Item> items, offload::Tier from, offload::Tier to);

  // Demotes as few as make the need at most `budget`, or where none do those that leave the least.
  void until(const std::function<std::uint64_t()>& need, std::uint64_t budget);
  // Demotes the first `count` and no others; touches what changes only.
  void demote(std::size_t count);
  std::size_t count() const { return count_; }
  // Of the items that are not demoted.
  std::uint64_t left_bytes() const { return left_bytes_; }

 private:
  std::vector<std::size_t> counts_of_kinds() const;

  const std::vector<Item> items_;
  const offload::Tier from_;
  const offload::Tier to_;
  std::size_t count_ = 0;
  std::uint64_t left_bytes_ = 0;
};

}  // namespace sluice::plan
