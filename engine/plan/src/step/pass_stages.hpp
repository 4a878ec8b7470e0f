#pragma once
// The stages of a plan's pass, and which units use them. Thread-safe: free functions without state.

#include <cstddef>
#include <vector>

#include "sluice/plan/plan.hpp"

namespace sluice::plan {

// The stages of one pass, forward and backward. A loop of the user's own has one pass per
// micro-batch.
std::vector<std::vector<std::size_t>> pass_stages(const Plan& plan);

// By unit, the stages that use it, ascending.
std::vector<std::vector<std::size_t>> stages_by_unit(
    const std::vector<std::vector<std::size_t>>& stages, std::size_t unit_count);

// zero::ends_of_ahead of these stages, for the plan's units.
std::vector<std::size_t> stage_ends_of_ahead(const Plan& plan,
                                             const std::vector<std::vector<std::size_t>>& stages,
                                             int units_ahead);

}  // namespace sluice::plan
