#pragma once
// A plan as text and as JSON. Thread-safe: free functions without state.

#include <optional>
#include <string>
#include <vector>

#include "sluice/plan/largest.hpp"

namespace sluice::plan {

struct Plan;
struct Prediction;

// The device that computes: "the host", or "cuda:0 (NVIDIA H200)".
std::string compute_name(const Plan& plan);
// The table for people: bytes by component and tier, budgets, least budgets, what is short by how
// much, disk needed and free, traffic of a step.
std::string plan_table(const Plan& plan);
// One line of JSON: the table's content, the prediction where there is one, and the largest models
// where they were asked for.
std::string plan_json(const Plan& plan, const std::optional<Prediction>& prediction,
                      const std::vector<LargestModel>& largest = {});

}  // namespace sluice::plan
