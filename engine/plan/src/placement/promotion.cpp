#include "placement/promotion.hpp"

#include <string>
#include <utility>
#include <vector>

#include "sluice/base/text.hpp"
#include "step/home_bytes.hpp"

namespace sluice::plan {

using offload::Tier;

namespace {

// Homes of one unit that move together.
struct Step {
  std::vector<std::pair<Tier*, Tier>> homes;  // in the plan; and the tier before the move
  bool* half_in_weights = nullptr;            // in the plan: the half that the weights have too
};

// Moves the first steps of a list, in order, to the device.
class Steps {
 public:
  explicit Steps(std::vector<Step> steps) : steps_(std::move(steps)) {}

  std::size_t size() const { return steps_.size(); }
  // Moves the first `count` steps and brings the others back.
  void take(std::size_t count) {
    for (; taken_ < count; ++taken_) {
      for (auto& [home, before] : steps_[taken_].homes) *home = Tier::device;
      leave_half(steps_[taken_], true);
    }
    while (taken_ > count) {
      --taken_;
      for (auto& [home, before] : steps_[taken_].homes) *home = before;
      leave_half(steps_[taken_], false);
    }
  }
  // Takes the most steps of [0, size()] for which `fits` holds; it holds for none.
  void take_most(const std::function<bool()>& fits) {
    std::size_t low = 0;
    std::size_t high = steps_.size();
    while (low < high) {
      const std::size_t middle = (low + high + 1) / 2;
      take(middle);
      if (fits()) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    take(low);
  }
  // Takes the fewest steps of [1, taken] for which `enough` holds; it holds for those taken.
  void take_fewest(const std::function<bool()>& enough) {
    std::size_t low = 1;
    std::size_t high = taken_;
    while (low < high) {
      const std::size_t middle = (low + high) / 2;
      take(middle);
      if (enough()) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    take(low);
  }
  std::size_t taken() const { return taken_; }

 private:
  static void leave_half(const Step& step, bool leave) {
    if (step.half_in_weights != nullptr) *step.half_in_weights = leave;
  }

  std::vector<Step> steps_;
  std::size_t taken_ = 0;
};

// The steps of all units that `make` gives one, the last unit first.
template <typename Make>
Steps steps_of(Plan& plan, const Make& make) {
  std::vector<Step> steps;
  for (std::size_t u = plan.units.size(); u-- > 0;) {
    Step step = make(plan.units[u]);
    if (!step.homes.empty() || step.half_in_weights != nullptr) steps.push_back(std::move(step));
  }
  return Steps(std::move(steps));
}

std::vector<Steps> steps_by_kind(Plan& plan) {
  const bool split = plan.state_format.is_split();
  const auto of = [](Tier& home) {
    Step step;
    if (home == Tier::host) step.homes.emplace_back(&home, home);
    return step;
  };
  std::vector<Steps> kinds;
  // Host memory that a split master's weights leave is taken by the master's other copy of them.
  if (!split)
    kinds.push_back(steps_of(plan, [&](UnitPlacement& unit) { return of(unit.weights); }));
  kinds.push_back(steps_of(plan, [&](UnitPlacement& unit) {
    return unit.frozen || unit.gradients_use_slots ? Step{} : of(unit.gradients);
  }));
  kinds.push_back(steps_of(plan, [&](UnitPlacement& unit) {
    if (unit.frozen) return split ? of(unit.weights) : Step{};
    Step step = of(unit.states);
    const bool takes_weights = split && unit.weights != Tier::device && !step.homes.empty();
    if (takes_weights) step.homes.emplace_back(&unit.weights, unit.weights);
    return step;
  }));
  return kinds;
}

// Upper halves of split masters leave host memory for weights that have them anyway. They take
// nothing of the device.
void leave_halves_to_weights(Plan& plan, const TierNeeds& needs,
                             const std::function<bool()>& enough) {
  Steps halves = steps_of(plan, [&](UnitPlacement& unit) {
    Step step;
    if (weights_can_have_half(unit, plan.state_format))
      step.half_in_weights = &unit.half_in_weights;
    return step;
  });
  if (halves.size() == 0) return;
  const std::uint64_t before = needs.host_bytes();
  halves.take(halves.size());
  if (enough()) return halves.take_fewest(enough);
  // The tiles that halves pass through may be larger than the halves.
  if (needs.host_bytes() >= before) halves.take(0);
}

}  // namespace

bool has_directory(const Plan& plan) {
  const auto nvme = config::OffloadConfig::Device::nvme;
  return plan.config.zero.offload_optimizer.device == nvme ||
         plan.config.zero.offload_param.device == nvme;
}

bool may_promote(const Plan& plan) {
  return plan.device.gpu && (!plan.own_loop() || plan.own.activation_bytes);
}

std::uint64_t room_beside_activations(const Plan& plan) {
  if (!plan.device.gpu) return 0;
  return *plan.budget.device_bytes / (may_promote(plan) ? 1 : 2);
}

std::uint64_t room_for_promotion(const Plan& plan) {
  return may_promote(plan) || !has_directory(plan) ? room_beside_activations(plan) : 0;
}

void promote_to_device(Plan& plan, const TierNeeds& needs) {
  const std::uint64_t room = room_for_promotion(plan);
  const auto fits = [&] { return needs.device_bytes() <= room; };
  const auto enough = [&] { return needs.host_bytes() <= *plan.budget.host_bytes; };
  if (enough()) return;
  leave_halves_to_weights(plan, needs, enough);
  if (!fits() || enough()) return;
  for (Steps& steps : steps_by_kind(plan)) {
    const std::uint64_t before = needs.host_bytes();
    steps.take_most(fits);
    if (steps.taken() == 0) continue;
    if (enough()) {
      steps.take_fewest(enough);
      return;
    }
    // Tiles that update states on the device may be larger than the states that left.
    if (needs.host_bytes() >= before) steps.take(0);
  }
}

void note_halves_in_weights(Plan& plan) {
  std::uint64_t bytes = 0;
  std::size_t units = 0;
  std::size_t trained = 0;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    trained += plan.units[u].frozen ? 0 : 1;
    if (!half_copied_to_tile(plan.units[u], plan.state_format)) continue;
    bytes += part_bytes(plan, u, 0);
    ++units;
  }
  if (units == 0) return;
  plan.choices.push_back("upper halves of the split master: those of " + std::to_string(units) +
                         " of " + std::to_string(trained) +
                         " units are only in the weights on the GPU, " + format_bytes(bytes) +
                         " that host_bytes has no room for; updates copy them to their tiles");
}

}  // namespace sluice::plan
