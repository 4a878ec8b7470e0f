// GradientFlow: norms and finite checks. gradient_flow.cpp has the way of gradients and updates.

#include <algorithm>
#include <cmath>
#include <new>
#include <numeric>
#include <span>

#include "sluice/base/error.hpp"
#include "step/gradients/gradient_flow.hpp"
#include "update/optimizer_tile.hpp"

namespace sluice::train {

// Runs on the thread of the reductions; with one rank on the one that trains.
zero::ShardedUnit::Reduced GradientFlow::check_of_sum(std::size_t unit) {
  return [this, unit, agree = ranks_agree_on_checks_](offload::DeviceSpan shard) {
    SumCheck check = norms_ ? check_on_device(unit, shard, agree) : check_on_host(unit, shard);
    if (agree) {
      const bool finite = check.non_finite.empty();
      double found[] = {finite ? 0.0 : 1.0};
      resources_.communicator->all_reduce(
          found, "whether the gradients of unit " + plan_.layouts[unit].name + " are finite");
      if (found[0] != 0.0 && finite) check.non_finite = plan_.layouts[unit].name;
    }
    sum_checks_[unit] = check;
  };
}

GradientFlow::SumCheck GradientFlow::check_on_host(std::size_t unit, offload::DeviceSpan shard) {
  const std::span<std::byte> values = resources_.device->host_view(shard);
  const cpu_adam::GradientStats stats = cpu_adam::gradient_stats(
      gradient_span(values, plan_.config.gradient_dtype()), *resources_.executor);
  return {.squared_norm = stats.squared_norm,
          .non_finite = stats.finite ? "" : first_non_finite(unit, values)};
}

// finish_check() reads the norm. Where the ranks `agree`, the finite check comes before.
GradientFlow::SumCheck GradientFlow::check_on_device(std::size_t unit, offload::DeviceSpan shard,
                                                     bool agree) {
  norms_->begin(unit, shard, plan_.config.gradient_dtype());
  if (!agree) return {};
  norms_->wait(unit);
  const bool finite = std::isfinite(norms_->squared_norm(unit));
  return {.squared_norm = 0, .non_finite = finite ? "" : plan_.layouts[unit].name};
}

void GradientFlow::finish_check(std::size_t unit) {
  const SumCheck& check = sum_checks_[unit];
  squared_norms_[unit] = norms_
                             ? norms_->finish(unit, resources_.unit_context.stalls, stall_seconds_)
                             : check.squared_norm;
  non_finite_[unit].clear();
  if (!check.non_finite.empty()) {
    found_non_finite(unit, check.non_finite);
  } else if (!std::isfinite(squared_norms_[unit])) {
    found_non_finite(unit, first_non_finite_at_home(unit));
  }
}

std::string GradientFlow::first_non_finite_at_home(std::size_t unit) const {
  const offload::TieredBytes& home = resources_.units[unit]->gradients_home();
  if (home.tier() == offload::Tier::nvme) return plan_.layouts[unit].name;
  if (home.tier() != offload::Tier::device) return first_non_finite(unit, home.host_memory());
  // Read back to name the parameter. No plan counts these bytes: the step fails, or is skipped. The
  // copy waits for all compute work: a further backward may be adding to the gradient where it is,
  // which leaves non-finite values non-finite.
  const offload::DeviceSpan values = home.device_memory();
  try {
    std::vector<std::byte> copy(gradient_shard_bytes(unit));
    resources_.device->begin_copy_out(copy, values.first(copy.size())).finish();
    return first_non_finite(unit, copy);
  } catch (const std::bad_alloc&) {
    return plan_.layouts[unit].name;
  }
}

std::uint64_t GradientFlow::gradient_shard_bytes(std::size_t unit) const {
  return zero::shard_count(plan_.layouts[unit], plan_.config.world_size) *
         size_of(plan_.config.gradient_dtype());
}

std::string GradientFlow::first_non_finite(std::size_t unit, std::span<std::byte> shard) const {
  const std::size_t element = size_of(plan_.config.gradient_dtype());
  const std::uint64_t first_count =
      zero::shard_range(plan_.layouts[unit], plan_.config.rank, plan_.config.world_size).begin;
  for (const zero::ParamLayout& param : plan_.layouts[unit].params) {
    const zero::ShardRange part = zero::part_in(param, first_count, shard.size() / element);
    if (part.count == 0) continue;
    const auto values = shard.subspan((part.begin - first_count) * element, part.count * element);
    if (!cpu_adam::gradient_stats(gradient_span(values, plan_.config.gradient_dtype()),
                                  *resources_.executor)
             .finite)
      return param.name;
  }
  return plan_.layouts[unit].name;
}

void GradientFlow::found_non_finite(std::size_t unit, const std::string& name) {
  const bool known = !non_finite().empty();
  non_finite_[unit] = name;
  if (known || !immediate_) return;
  if (!has_updated_) return immediate_.reset();
  // In a loop of the user's own, the ranks go on to the end of the step, and fail there together.
  halted_ = plan_.own_loop();
  if (!halted_) fail_halted("the gradient of " + name);
}

void GradientFlow::fail_halted(const std::string& non_finite) const {
  const bool own = plan_.own_loop();
  throw Error(non_finite + " is not finite. " +
              (own ? "With optimizer_in_backward" : "Without gradient_clipping") +
              " each update begins when its gradient arrives, and later layers are already "
              "updated, so this step cannot be skipped. To have such steps skipped, " +
              (own ? "leave that key out. " : "set gradient_clipping (1e9 clips nothing). ") +
              remaining_state(plan_, resources_.files.store.get()));
}

std::string GradientFlow::non_finite() const {
  const auto found = std::find_if(non_finite_.rbegin(), non_finite_.rend(),
                                  [](const std::string& name) { return !name.empty(); });
  return found == non_finite_.rend() ? "" : *found;
}

// Summed from the last unit to the first, in the order in which backward sends them.
double GradientFlow::squared_norm() const {
  return std::accumulate(squared_norms_.rbegin(), squared_norms_.rend(), 0.0);
}

}  // namespace sluice::train
