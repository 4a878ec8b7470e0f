#pragma once
// The parameter groups of a plan, for people and as JSON. Thread-safe: free functions without
// state.

#include <json/value.h>

#include <string>

#include "sluice/plan/plan.hpp"

namespace sluice::plan {

// A table with a line for each group; empty when all parameters are one group.
std::string groups_text(const Plan& plan);
// A list with an object for each group.
Json::Value groups_json(const Plan& plan);

}  // namespace sluice::plan
