#include "search/placement_search.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "placement/ring_sizes.hpp"

namespace sluice::plan {

namespace {

std::vector<Overlap> overlap_ladder(const config::TrainConfig& config) {
  if (!config.sluice.overlap) return {{0, 1}};
  const config::ZeroConfig& zero = config.zero;
  if (zero.prefetch_bucket_size == 0) return {{0, 2}, {0, 1}};
  return {{1, 2}, {1, 1}, {0, 1}};
}

}  // namespace

PlacedPlan find_placement(Plan plan, const StepModel& model, const Preferences& preferences) {
  PlacedPlan last{std::move(plan), {}};
  const std::vector<RingSizes> rings = ring_size_ladder(last.plan);
  const auto fits = [&](const Overlap& overlap, const Preferences& asked) {
    Preferences in_host = asked;
    in_host.tied_gradients_in_host = true;
    for (const RingSizes& chosen : {first_ring_sizes(last.plan, rings), rings.back()}) {
      for (const Preferences& each : {asked, in_host}) {
        last.shortfall = place(last.plan, model, overlap, chosen, each);
        if (last.shortfall.fits()) return true;
      }
    }
    return false;
  };
  const std::vector<Overlap> overlaps = overlap_ladder(last.plan.config);
  for (const Overlap& overlap : overlaps) {
    if (fits(overlap, preferences)) return last;
  }
  // Items that leave the device may need less host memory than the tiles that update them on the
  // device, so moving everything off the device may fit.
  PlacedPlan refused = last;
  Preferences as_little = preferences;
  as_little.least_on_device = true;
  if (fits(overlaps.back(), as_little)) return last;
  return refused;
}

void find_least(Plan& plan, const StepModel& model) {
  if (plan.gradients_summed_on_device() && !plan.config.sluice.passes.each) {
    Plan one_pass = plan;
    one_pass.schedule.passes.each = one_pass.schedule.passes.last =
        static_cast<std::size_t>(plan.config.gradient_accumulation_steps);
    find_least(one_pass, StepModel(one_pass));
    plan.least.device_bytes = one_pass.least.device_bytes;
    plan.least.host_bytes = one_pass.least.host_bytes;
    return;
  }
  const Overlap overlap = overlap_ladder(plan.config).back();
  const std::vector<RingSizes> rings = ring_size_ladder(plan);
  const LeastBytes plain = least_bytes(plan, model, overlap, rings.back());
  const LeastBytes first = least_bytes(plan, model, overlap, first_ring_sizes(plan, rings));
  plan.least.device_bytes = plain.device_bytes;
  plan.least.host_bytes = std::min(plain.host_bytes, first.host_bytes);
}

}  // namespace sluice::plan
