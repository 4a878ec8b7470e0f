#include "sluice/plan/stages.hpp"

#include <utility>

#include "sluice/zero/prefetcher.hpp"
#include "step/pass_stages.hpp"

namespace sluice::plan {

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

std::vector<std::size_t> stage_ends_of_ahead(const Plan& plan,
                                             const std::vector<std::vector<std::size_t>>& stages,
                                             int units_ahead) {
  std::vector<std::uint64_t> elements;
  for (const zero::UnitLayout& layout : plan.layouts) elements.push_back(layout.flat_count);
  return zero::ends_of_ahead(stages, elements, units_ahead);
}

}  // namespace sluice::plan
