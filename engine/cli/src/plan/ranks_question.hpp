#pragma once
// A question to the formulas for many ranks: model, configurations, rates, and what was assumed.
// Confined to thread: main.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "command/arguments.hpp"
#include "command/session.hpp"
#include "sluice/config/model_config.hpp"
#include "sluice/config/train_config.hpp"
#include "sluice/plan/rank_plan.hpp"

namespace sluice::cli {

// The subject of the plan, the rates of the hardware, and one line for each assumption.
struct RanksQuestion {
  config::ModelConfig model;
  // By number of ranks: it divides a batch.
  std::map<std::uint64_t, config::TrainConfig> configs;
  std::map<std::uint64_t, plan::RankShape> shapes;
  std::map<std::uint64_t, plan::StepWork> work;
  const plan::RankShape& shape() const { return shapes.begin()->second; }  // batches apart
  double network_bytes = 0;
  std::vector<std::string> assumptions;
};

// Reads the files, and takes the rates of the hardware from flags, from what --probe has measured
// or measures now, or from assumptions. Throws as run_ranks_plan() does.
RanksQuestion ask(const PlanArguments& arguments, Session& session);
// Those of `ranks` that share a host.
std::uint64_t ranks_of_host(const RanksArguments& arguments, std::uint64_t ranks);

}  // namespace sluice::cli
