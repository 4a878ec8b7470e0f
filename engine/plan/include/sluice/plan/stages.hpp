#pragma once
// The order in which a pass uses the units. Thread-safe: free functions without state.

#include <cstddef>
#include <vector>

#include "sluice/zero/unit_layout.hpp"

namespace sluice::plan {

// The stages of one training pass, in order. Each stage lists the units that are used together: a
// tied head and the unit that owns its weights. A pass goes forward, then backward; the last unit
// has one stage for both.
std::vector<std::vector<std::size_t>> step_stages(const std::vector<zero::UnitLayout>& layouts);
// The stages of an evaluation, which goes forward only.
std::vector<std::vector<std::size_t>> evaluation_stages(
    const std::vector<zero::UnitLayout>& layouts);

}  // namespace sluice::plan
