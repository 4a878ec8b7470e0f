#include "search/placement_search.hpp"

#include <algorithm>
#include <optional>
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

bool is_less(const Shortfall& a, const Shortfall& b) {
  return std::pair(a.no_directory, a.device_bytes + a.host_bytes) <
         std::pair(b.no_directory, b.device_bytes + b.host_bytes);
}

}  // namespace

PlacedPlan find_placement(Plan plan, const StepModel& model, const Preferences& preferences) {
  PlacedPlan last{std::move(plan), {}};
  const std::vector<RingSizes> sizes = ring_sizes_to_try(last.plan);
  struct Attempt {
    RingSizes rings;
    Preferences preferences;
    Shortfall shortfall;
  };
  std::optional<Attempt> nearest;  // of the last overlap
  const auto fits = [&](const Overlap& overlap, const Preferences& asked) {
    Preferences in_host = asked;
    in_host.tied_gradients_in_host = true;
    nearest.reset();
    for (const RingSizes& chosen : sizes) {
      for (const Preferences& each : {asked, in_host}) {
        last.shortfall = place(last.plan, model, overlap, chosen, each);
        if (last.shortfall.fits()) return true;
        if (!nearest || is_less(last.shortfall, nearest->shortfall))
          nearest = {chosen, each, last.shortfall};
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
  const Attempt refused = *nearest;
  Preferences as_little = preferences;
  as_little.least_on_device = true;
  if (fits(overlaps.back(), as_little)) return last;
  last.shortfall = place(last.plan, model, overlaps.back(), refused.rings, refused.preferences);
  return last;
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
  std::vector<std::uint64_t> host_bytes;
  for (const RingSizes& sizes : ring_sizes_to_try(plan)) {
    const LeastBytes least = least_bytes(plan, model, overlap, sizes);
    plan.least.device_bytes = least.device_bytes;
    host_bytes.push_back(least.host_bytes);
  }
  plan.least.host_bytes = *std::ranges::min_element(host_bytes);
}

}  // namespace sluice::plan
