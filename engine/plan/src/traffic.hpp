#pragma once
// Bytes per step over each link, from the placement.

#include "sluice/plan/plan.hpp"

namespace sluice::plan {

void fill_traffic(Plan& plan);

}  // namespace sluice::plan
