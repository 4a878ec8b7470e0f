#include "totals/traffic.hpp"

#include <vector>

#include "sluice/base/bytes.hpp"
#include "sluice/base/dtype.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "step/home_bytes.hpp"
#include "step/pass_stages.hpp"

namespace sluice::plan {

using offload::Tier;

namespace {

// Gathers of a unit in a pass. The unit stays gathered where the stage after a use gathers the next
// one ahead, or for the whole pass when it stays until backward.
int gathers_per_pass(const Plan& plan, std::size_t unit, const std::vector<std::size_t>& uses,
                     const std::vector<std::size_t>& ends_of_ahead) {
  int gathers = 0;
  std::size_t last_use = 0;
  for (const std::size_t stage : uses) {
    const bool still_there =
        gathers > 0 && (plan.units[unit].gathered_until_backward || stage <= last_use + 1 ||
                        stage < ends_of_ahead[last_use + 1]);
    if (!still_there) ++gathers;
    last_use = stage;
  }
  return gathers;
}

// By unit, how often its gradient goes home in a step; before each send but the first, it comes
// back. A borrowed unit sends once more per borrower. In a loop of the user's own, every call of
// every micro-batch sends; where gradients add up on the device, the last one does.
std::vector<std::uint64_t> gradient_sends(const Plan& plan) {
  std::vector<std::uint64_t> sends(plan.layouts.size(), plan.own_loop() ? 0 : 1);
  const auto micro_batches = static_cast<std::uint64_t>(plan.config.gradient_accumulation_steps);
  for (std::size_t u = 0; u < plan.own.backwards.size(); ++u) {
    const auto calls = static_cast<std::uint64_t>(plan.own.backwards[u]);
    sends[u] = plan.units[u].sums_on_device ? 1 : calls * micro_batches;
  }
  for (const zero::UnitLayout& layout : plan.layouts) {
    for (const auto& borrowed : layout.borrowed) ++sends[borrowed.unit];
  }
  return sends;
}

// Bytes that the computing thread's visits to a unit move.
UnitTraffic visits_to(const Plan& plan, std::size_t u, int gathers_per_pass, std::uint64_t sends) {
  const UnitPlacement& unit = plan.units[u];
  const std::uint64_t compute = shard_count(plan, u) * size_of(plan.compute_dtype);
  UnitTraffic traffic;
  if (!weights_used_at_home(unit)) {
    const std::uint64_t gathers = plan.passes() * static_cast<std::uint64_t>(gathers_per_pass);
    traffic.h2d_bytes += gathers * compute;
    if (unit.weights == Tier::nvme) traffic.read_bytes += gathers * compute;
  }
  if (unit.frozen) return traffic;
  if (!gradients_used_at_home(unit)) {
    const std::uint64_t gradient = shard_count(plan, u) * size_of(plan.config.gradient_dtype());
    traffic.d2h_bytes += sends * gradient;
    traffic.h2d_bytes += (sends - 1) * gradient;
    if (unit.gradients == Tier::nvme) {
      traffic.written_bytes += sends * gradient;
      traffic.read_bytes += (sends - 1) * gradient;  // back to the device, to be added to
    }
  }
  const std::uint64_t hidden = plan.unit_input_bytes();
  for (std::size_t m = 0; m < unit.inputs.size(); ++m) {
    const Tier input = unit.inputs[m];
    if (input == Tier::device) continue;
    const std::uint64_t passes = m < plan.schedule.passes.each ? plan.passes() : 1;
    // Out: the unit's input, then the gradient of it. In: the input for forward and for backward,
    // and the gradient of it for the backward of the unit before. The last unit uses its input
    // once, for both.
    const std::uint64_t in = passes * (u + 1 == plan.units.size() ? 2 : 3);
    const std::uint64_t out = passes * 2;
    traffic.d2h_bytes += out * hidden;
    traffic.h2d_bytes += in * hidden;
    if (input == Tier::nvme) {  // whole blocks
      traffic.written_bytes += out * offload::pool_bytes(hidden);
      traffic.read_bytes += in * offload::pool_bytes(hidden);
    }
  }
  return traffic;
}

// Bytes of states on NVMe that memory holds too, in one update.
struct CachedTraffic {
  std::uint64_t cached_bytes = 0;    // read from the cache, not from NVMe
  std::uint64_t deferred_bytes = 0;  // written at commits only
};

UnitTraffic state_traffic(const Plan& plan, std::size_t unit, CachedTraffic& cached) {
  UnitTraffic traffic;
  if (plan.units[unit].states != Tier::nvme) return traffic;
  const models::StateFormat& format = plan.state_format;
  for (std::size_t part = 0; part < format.part_count(); ++part) {
    const std::uint64_t bytes = shard_count(plan, unit) * format.part(part).element_bytes;
    const PartPlace place = place_of_part(plan.units[unit], format, part);
    traffic.written_bytes += bytes;
    if (place == PartPlace::tile) traffic.read_bytes += bytes;
    if (place == PartPlace::memory) cached.cached_bytes += bytes;
    if (place != PartPlace::tile) cached.deferred_bytes += bytes;
  }
  // A swap directory without all states is never committed, so deferred bytes are never written.
  if (!plan.states_all_on_nvme()) {
    traffic.written_bytes -= cached.deferred_bytes;
    cached.deferred_bytes = 0;
  }
  return traffic;
}

// Bytes that a committed update moves.
UnitTraffic committed_traffic(const Plan& plan, std::size_t u, CachedTraffic& cached) {
  const UnitPlacement& unit = plan.units[u];
  if (unit.frozen || device_has_all_of(unit)) return {};
  const std::uint64_t compute = shard_count(plan, u) * size_of(plan.compute_dtype);
  const std::uint64_t gradient = shard_count(plan, u) * size_of(plan.config.gradient_dtype());
  UnitTraffic traffic = state_traffic(plan, u, cached);
  if (unit.weights == Tier::nvme) traffic.written_bytes += compute;
  if (unit.weights == Tier::device && update_sends_weights(unit)) traffic.h2d_bytes += compute;
  if (unit.gradients == Tier::nvme) traffic.read_bytes += gradient;
  if (unit.gradients == Tier::device && tile_holds_gradient(unit)) traffic.d2h_bytes += gradient;
  if (half_copied_to_tile(unit, plan.state_format)) traffic.d2h_bytes += compute;
  if (states_copied_to_tile(unit)) {
    const std::uint64_t states = plan.state_format.element_bytes() * shard_count(plan, u);
    // The weights are a part of a split master, unless they are on NVMe: no copy moves those in
    // host memory, and those on the device are counted above on their way there.
    const std::uint64_t half = plan.state_format.is_split() ? compute : 0;
    traffic.d2h_bytes += states - (unit.weights == Tier::host ? half : 0);
    traffic.h2d_bytes += states - (unit.weights == Tier::nvme ? 0 : half);
  }
  return traffic;
}

}  // namespace

UnitTraffic update_traffic(const Plan& plan, std::size_t unit) {
  CachedTraffic cached;
  UnitTraffic traffic = committed_traffic(plan, unit, cached);
  const auto every = static_cast<std::uint64_t>(plan.config.sluice.commit_every);
  traffic.written_bytes -= cached.deferred_bytes - cached.deferred_bytes / every;
  return traffic;
}

std::vector<UnitTraffic> visits_traffic(const Plan& plan) {
  const auto stages = pass_stages(plan);
  const auto uses = stages_by_unit(stages, plan.layouts.size());
  const auto ends = stage_ends_of_ahead(plan, stages, plan.schedule.prefetch_units);
  const std::vector<std::uint64_t> sends = gradient_sends(plan);
  std::vector<UnitTraffic> all;
  for (std::size_t u = 0; u < plan.units.size(); ++u)
    all.push_back(visits_to(plan, u, gathers_per_pass(plan, u, uses[u], ends), sends[u]));
  return all;
}

void fill_traffic(Plan& plan) {
  const std::vector<UnitTraffic> visits = visits_traffic(plan);
  std::uint64_t deferred_until_commit = 0;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    CachedTraffic cached;
    for (const UnitTraffic& traffic : {visits[u], committed_traffic(plan, u, cached)}) {
      plan.traffic.h2d_bytes += traffic.h2d_bytes;
      plan.traffic.d2h_bytes += traffic.d2h_bytes;
      plan.traffic.nvme_read_bytes += traffic.read_bytes;
      plan.traffic.nvme_written_bytes += traffic.written_bytes;
    }
    plan.traffic.nvme_cached_bytes += cached.cached_bytes;
    deferred_until_commit += cached.deferred_bytes;
  }
  plan.traffic.nvme_written_between_commits_bytes = plan.traffic.nvme_written_bytes;
  if (plan.config.sluice.commit_every > 1)
    plan.traffic.nvme_written_between_commits_bytes -= deferred_until_commit;
}

}  // namespace sluice::plan
