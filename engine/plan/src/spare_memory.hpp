#pragma once
// What host memory beyond a plan's needs is used for. Not installed.

#include <cstdint>

#include "sluice/plan/plan.hpp"

namespace sluice::plan {

// Of `room_bytes`: the cache that is asked for, then gradients that wait, then tiles to read states
// ahead. Sizes of rings are known.
void use_spare_memory(Plan& plan, std::uint64_t room_bytes);

}  // namespace sluice::plan
