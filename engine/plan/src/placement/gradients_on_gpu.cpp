#include "placement/gradients_on_gpu.hpp"

#include <algorithm>
#include <string>

#include "sluice/base/bytes.hpp"
#include "sluice/base/text.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "step/home_bytes.hpp"

namespace sluice::plan {

using offload::pool_bytes;
using offload::Tier;

namespace {

bool can_stay(const Plan& plan, const UnitPlacement& unit) {
  const bool begins_early = !plan.config.updates_need_all_gradients() || unit.second_states;
  return !unit.frozen && begins_early && unit.gradients == Tier::host &&
         unit.states == Tier::host && unit.weights == Tier::device;
}

// Host memory for gradients at home and in slots, and for the tiles that may hold them.
std::uint64_t host_bytes_of_gradients(const Plan& plan) {
  const UpdateRing& ring = plan.rings.update;
  const std::uint64_t tiles =
      static_cast<std::uint64_t>(ring.tiles) + static_cast<std::uint64_t>(ring.read_ahead_tiles);
  std::uint64_t sum =
      tiles * pool_bytes(ring.tile_bytes) + static_cast<std::uint64_t>(plan.rings.gradient_slots) *
                                                pool_bytes(plan.rings.gradient_slot_bytes);
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const UnitPlacement& unit = plan.units[u];
    if (unit.gradients == Tier::host && !unit.gradients_use_slots && !unit.frozen)
      sum += gradient_bytes(plan, u);
  }
  return sum;
}

void fit_rings(Plan& plan) {
  plan.rings.update.tile_bytes = update_tile_bytes(plan, plan.rings.update.tile_elements);
  const auto use_slots =
      std::count_if(plan.units.begin(), plan.units.end(),
                    [](const UnitPlacement& unit) { return unit.gradients_use_slots; });
  plan.rings.gradient_slots = std::min(plan.rings.gradient_slots, static_cast<int>(use_slots));
  if (use_slots == 0) plan.rings.gradient_slot_bytes = 0;
}

}  // namespace

std::vector<bool> keep_gradients_on_gpu(Plan& plan, const Preferences& preferences,
                                        const TierBytes& room) {
  std::vector<bool> stay(plan.units.size(), false);
  if (!plan.device.gpu || plan.own_loop() || !plan.config.sluice.overlap ||
      preferences.least_on_device || preferences.gradients_in_host)
    return stay;
  const std::vector<UnitPlacement> before = plan.units;
  const auto rings_before = plan.rings;
  const std::uint64_t host_before = host_bytes_of_gradients(plan);
  std::uint64_t used = 0;
  std::size_t units = 0;
  std::size_t trained = 0;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    UnitPlacement& unit = plan.units[u];
    trained += unit.frozen ? 0 : 1;
    const std::uint64_t size_bytes = block_bytes(plan, Tier::device, gradient_bytes(plan, u));
    if (!can_stay(plan, unit) || used + size_bytes > room.device) continue;
    unit.gradients = Tier::device;
    unit.gradients_use_slots = false;
    stay[u] = true;
    used += size_bytes;
    ++units;
  }
  if (units == 0) return stay;
  fit_rings(plan);
  if (host_bytes_of_gradients(plan) > host_before + room.host) {
    plan.units = before;
    plan.rings = rings_before;
    return std::vector<bool>(plan.units.size(), false);
  }
  plan.choices.push_back("gradients on the GPU: those of " + std::to_string(units) + " of " +
                         std::to_string(trained) + " units wait there for their updates, " +
                         format_bytes(used) +
                         ", because it has the room; \"device_bytes\" limits " + "this");
  return stay;
}

}  // namespace sluice::plan
