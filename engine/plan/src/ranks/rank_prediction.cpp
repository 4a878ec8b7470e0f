// Seconds of a step of many ranks, from the work of one.

#include <algorithm>
#include <utility>
#include <vector>

#include "sluice/base/dtype.hpp"
#include "sluice/base/error.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/plan/rank_plan.hpp"
#include "step/step_seconds.hpp"
#include "totals/traffic.hpp"

namespace sluice::plan {

using offload::Tier;

namespace {

// The plan with each unit's input on the device: all that its links still move are shards.
Plan without_inputs(const Plan& plan) {
  Plan bare = plan;
  for (UnitPlacement& unit : bare.units) {
    for (Tier& input : unit.inputs) input = Tier::device;
  }
  bare.traffic = {};
  fill_traffic(bare);
  return bare;
}

// The seconds of a step by its links, without what is beyond them.
double bound_of(const StepWork& work, const RankPrediction& links) {
  const double network = links.gather_seconds + links.reduce_seconds;
  const double cores = links.compute_seconds + links.copy_seconds + links.update_seconds;
  if (!work.overlap) return cores + network + links.drive_seconds;
  if (work.shares_cores) return std::max({cores, network, links.drive_seconds});
  return std::max({links.compute_seconds, links.copy_seconds, links.update_seconds, network,
                   links.drive_seconds});
}

RankPrediction links_of(const StepWork& work, const RankSetting& setting) {
  const auto ranks = static_cast<double>(setting.ranks);
  const auto on_host = static_cast<double>(std::min(setting.ranks_per_host, setting.ranks));
  // Ranks without GPUs share the cores of their host, and take turns where it has too few.
  const double turns = work.shares_cores ? std::max(on_host * work.cores_share, 1.0) : 1;
  const double update_turns = std::max(on_host * work.update_cores_share, 1.0);
  const double others = (ranks - 1) / ranks;
  RankPrediction links;
  links.compute_seconds = work.compute_seconds * turns;
  links.copy_seconds = (work.sharded_copy_seconds / ranks + work.own_copy_seconds) * turns;
  links.drive_seconds = (work.sharded_drive_seconds / ranks + work.own_drive_seconds) * on_host;
  links.update_seconds = work.update_seconds * update_turns / ranks;
  links.gather_seconds = over(work.gathered_bytes * others, setting.network_bytes_per_second);
  links.reduce_seconds = over(work.reduced_bytes * others, setting.network_bytes_per_second);
  return links;
}

}  // namespace

StepWork step_work(const RankShape& shape, const RankRates& rates) {
  const RankTraffic traffic = rank_traffic(shape);
  StepWork work;
  work.compute_seconds = over(rank_flops(shape), rates.flops_per_second);
  work.update_seconds = over(traffic.updated, rates.update_elements_per_second);
  work.sharded_copy_seconds = over(traffic.copy_bytes, rates.copy_bytes_per_second);
  work.own_copy_seconds = over(traffic.input_bytes, rates.copy_bytes_per_second);
  work.sharded_drive_seconds =
      over(traffic.read_bytes + traffic.written_bytes, rates.drive_bytes_per_second);
  work.gathered_bytes = traffic.gathered_bytes;
  work.reduced_bytes = traffic.reduced_bytes;
  work.tokens = static_cast<double>(shape.micro_batches * shape.micro_batch * shape.sequence);
  work.overlap = shape.overlap;
  return work;
}

StepWork step_work(const Plan& plan, const MachineRates& rates, int host_cores) {
  const Prediction all = predict(plan, rates);
  const Prediction sharded = predict(without_inputs(plan), rates);
  double parameters = 0;
  for (const zero::UnitLayout& unit : plan.layouts)
    parameters += static_cast<double>(unit.param_count);
  const double weights = parameters * static_cast<double>(size_of(plan.compute_dtype));
  StepWork work;
  work.compute_seconds = all.compute_seconds;
  work.update_seconds = all.update_seconds;
  work.sharded_copy_seconds = sharded.copy_seconds;
  work.own_copy_seconds = all.copy_seconds - sharded.copy_seconds;
  work.sharded_drive_seconds = sharded.drive_seconds;
  work.own_drive_seconds = all.drive_seconds - sharded.drive_seconds;
  const bool is_sharded = plan.config.zero.stage == config::kStageOfShardedWeights;
  work.gathered_bytes = (is_sharded ? 2 * static_cast<double>(plan.passes()) : 1) * weights;
  work.reduced_bytes = parameters * static_cast<double>(size_of(plan.config.wire_dtype()));
  work.tokens = all.tokens_per_second * all.step_seconds;
  work.shares_cores = !plan.device.gpu;
  if (work.shares_cores) {
    const Threads& threads = plan.schedule.threads;
    work.cores_share = std::min(static_cast<double>(threads.compute) / host_cores, 1.0);
    work.update_cores_share = std::min(static_cast<double>(threads.optimizer) / host_cores, 1.0);
  }
  work.overlap = plan.config.sluice.overlap;
  work.beyond_bound = all.step_seconds - bound_of(work, links_of(work, {}));
  return work;
}

RankPrediction predict_ranks(const StepWork& work, const RankSetting& setting) {
  SLUICE_CHECK(setting.ranks == 1 || setting.network_bytes_per_second > 0,
               "several ranks need a rate of the network");
  RankPrediction prediction = links_of(work, setting);
  const auto own = prediction.links();
  std::vector<std::pair<const char*, double>> links(own.begin(), own.end());
  links.emplace_back("network", prediction.gather_seconds + prediction.reduce_seconds);
  prediction.bound_by = longest(links);
  prediction.step_seconds = bound_of(work, prediction) + work.beyond_bound;
  prediction.tokens_per_second =
      over(work.tokens * static_cast<double>(setting.ranks), prediction.step_seconds);
  return prediction;
}

}  // namespace sluice::plan
