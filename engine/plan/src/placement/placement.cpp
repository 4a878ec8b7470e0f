#include "placement/placement.hpp"

#include <algorithm>
#include <utility>

#include "placement/demotion.hpp"
#include "placement/device_tiles.hpp"
#include "placement/gradients_on_gpu.hpp"
#include "placement/promotion.hpp"
#include "placement/retained_units.hpp"
#include "placement/spare_memory.hpp"
#include "placement/states_on_gpu.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/text.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "step/home_bytes.hpp"

namespace sluice::plan {

using offload::pool_bytes;
using offload::Tier;
using Device = config::OffloadConfig::Device;

namespace {

Tier tier_of(Device device) {
  switch (device) {
    case Device::none:
      return Tier::device;
    case Device::cpu:
      return Tier::host;
    case Device::nvme:
      return Tier::nvme;
  }
  return Tier::device;
}

// The largest gradient that uses a slot, rounded up to whole pages.
std::uint64_t gradient_slot_bytes(const Plan& plan) {
  std::uint64_t largest = 0;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    if (plan.units[u].gradients_use_slots)
      largest = std::max(largest, align_up(gradient_bytes(plan, u), offload::kPageBytes));
  }
  return largest;
}

std::uint64_t ring_bytes(const Plan& plan, const RingSizes& rings) {
  const std::uint64_t update = static_cast<std::uint64_t>(rings.update_tiles) *
                               pool_bytes(update_tile_bytes(plan, rings.update_tile_elements));
  const std::uint64_t mover =
      moves_files(plan)
          ? 2 * static_cast<std::uint64_t>(rings.mover_tiles) * pool_bytes(rings.mover_tile_bytes)
          : 0;
  const std::uint64_t gradients =
      static_cast<std::uint64_t>(rings.gradient_slots) * pool_bytes(gradient_slot_bytes(plan));
  return update + mover + gradients;
}

// Units that others borrow from get gradients at different times. These have a home of their own.
std::vector<bool> are_borrowed_from(const Plan& plan) {
  std::vector<bool> borrowed(plan.layouts.size(), false);
  for (std::size_t u = 0; const int calls : plan.own.backwards) borrowed[u++] = calls > 1;
  for (const zero::UnitLayout& layout : plan.layouts)
    for (const auto& from : layout.borrowed) borrowed[from.unit] = true;
  return borrowed;
}

// Units whose gradients use slots. Excludes units that others borrow from. Excludes gradients that
// would leave most of a slot empty: a slot has room for the largest gradient.
std::vector<bool> are_for_slots(const Plan& plan) {
  std::vector<bool> use = are_borrowed_from(plan);
  use.flip();
  std::uint64_t largest = 0;
  for (std::size_t u = 0; u < use.size(); ++u) {
    if (use[u]) largest = std::max(largest, gradient_bytes(plan, u));
  }
  for (std::size_t u = 0; u < use.size(); ++u)
    use[u] = use[u] && gradient_bytes(plan, u) >= largest / 4;
  return use;
}

// Whether other units add to the gradients of this one. On a GPU its gradients wait there: at home
// in host memory, the sum so far would come back for each part, and the last part ends the step.
std::vector<bool> are_summed_on_gpu(const Plan& plan) {
  if (!plan.device.gpu || plan.own_loop()) return std::vector<bool>(plan.layouts.size(), false);
  return are_borrowed_from(plan);
}

// A host device with a budget of its own imitates a device, copies included.
bool uses_host_homes(const Plan& plan) {
  return plan.device.host_addressable && plan.config.world_size == 1 &&
         plan.config.sluice.device_bytes.kind == config::ByteBudget::Kind::automatic;
}

// Gives every byte the tier that the configuration asks for, and all of the first `on_gpu` units
// the device.
void place_as_asked(Plan& plan, const RingSizes& rings, const Preferences& preferences,
                    std::size_t on_gpu) {
  const std::vector<bool> for_slots = are_for_slots(plan);
  const Tier weights = tier_of(plan.config.zero.offload_param.device);
  const Tier states = tier_of(plan.config.zero.offload_optimizer.device);
  std::vector<bool> summed_on_gpu = are_summed_on_gpu(plan);
  if (preferences.tied_gradients_in_host) summed_on_gpu.assign(plan.layouts.size(), false);
  plan.units.assign(plan.layouts.size(), UnitPlacement{});
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    UnitPlacement& unit = plan.units[u];
    unit.frozen = plan.layouts[u].frozen;
    unit.device_host_addressable = plan.device.host_addressable;
    unit.device_has_kernels = plan.device.has_update_kernels;
    unit.uses_host_homes = unit.sums_in_host_homes = uses_host_homes(plan);
    unit.weights = weights;
    unit.states = states == Tier::nvme && u < preferences.units_off_nvme ? Tier::host : states;
    const bool on_device =
        states == Tier::device || plan.gradients_summed_on_device() || summed_on_gpu[u];
    unit.gradients = on_device ? Tier::device : Tier::host;
    unit.gradients_use_slots =
        rings.gradient_slots > 0 && unit.gradients == Tier::host && for_slots[u];
    if (u < on_gpu && !unit.frozen) keep_on_gpu(unit);
    const config::Activations activations = plan.config.sluice.activations;
    const bool to_host =
        activations == config::Activations::offload ||
        (activations == config::Activations::automatic && preferences.inputs_in_host);
    if (plan.own_loop()) continue;
    if (u > 0) unit.inputs.assign(plan.schedule.passes.last, to_host ? Tier::host : Tier::device);
    unit.activations_saved = activations == config::Activations::keep && u + 1 < plan.units.size();
  }
}

// The part of the device's budget that homes may fill. Tensors that nobody has counted get half of
// it, as beside states on a GPU (room_beside_activations()).
std::uint64_t room_for_homes(const Plan& plan) {
  return *plan.budget.device_bytes / (shares_budget_with_loop(plan) ? 2 : 1);
}

TierNeeds needs_of(const Plan& plan, const StepModel& model, const Overlap& overlap,
                   const RingSizes& rings) {
  return {[&plan, &model, overlap] {
            return checked_add(home_bytes(plan, Tier::device) + update_flags_bytes(plan).device,
                               model.peak(plan.units, overlap).total());
          },
          [&plan, rings] {
            return checked_add(home_bytes(plan, Tier::host),
                               cached_bytes(plan) + ring_bytes(plan, rings) +
                                   staging_of_ranks_bytes(plan) + update_flags_bytes(plan).host);
          }};
}

std::uint64_t over(std::uint64_t need, std::uint64_t budget) {
  return need > budget ? need - budget : 0;
}

void note_spill(Plan& plan, const char* what, Tier asked, Tier UnitPlacement::*member,
                const std::vector<bool>& placed_otherwise = {}) {
  std::size_t counts[4] = {0, 0, 0, 0};  // by tier
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    if (!placed_otherwise.empty() && placed_otherwise[u]) continue;
    const Tier tier = plan.units[u].*member;
    if (tier != asked) ++counts[static_cast<std::size_t>(tier)];
  }
  constexpr std::pair<Tier, const char*> kPlaces[] = {
      {Tier::device, "on the device"}, {Tier::host, "in host memory"}, {Tier::nvme, "on NVMe"}};
  std::string places;
  for (const auto& [tier, place] : kPlaces) {
    const std::size_t count = counts[static_cast<std::size_t>(tier)];
    if (count == 0) continue;
    places += (places.empty() ? " " : ", ") + std::to_string(count) +
              (count == 1 ? " unit is " : " units are ") + place;
  }
  if (places.empty()) return;
  const bool beside = asked == Tier::device && shares_budget_with_loop(plan);
  const std::string reason =
      asked != Tier::nvme ? "the budget of tier " + std::string(name_of(asked)) + " is used up" +
                                (beside ? " beside activations;" : ";")
      : member == &UnitPlacement::states ? "the drive has room for no more of them;"
                                         : "they are a part of the states;";
  plan.choices.push_back(std::string(what) + ": " + reason + places);
}

// Notes saved activations, and unit inputs off the device.
void note_activations(Plan& plan, const Preferences& preferences) {
  std::size_t counts[4] = {0, 0, 0, 0};
  for (const UnitPlacement& unit : plan.units) {
    for (const Tier tier : unit.inputs) ++counts[static_cast<std::size_t>(tier)];
  }
  const std::size_t all = counts[0] + counts[2] + counts[3];
  const auto saved =
      std::count_if(plan.units.begin(), plan.units.end(),
                    [](const UnitPlacement& unit) { return unit.activations_saved; });
  const std::size_t units = plan.units.size() - 1;  // the head's backward follows at once
  if (!plan.own_loop() && plan.config.sluice.activations == config::Activations::automatic) {
    plan.choices.push_back(
        "activations: saved for " + std::to_string(saved) + " of " + std::to_string(units) +
        " units" +
        (static_cast<std::size_t>(saved) < units && !preferences.inputs_in_host
             ? "; the device budget is too small for the others, which are recomputed"
             : ""));
  }
  if (all > counts[0]) {
    plan.choices.push_back("unit inputs: of " + std::to_string(all) + ", " +
                           std::to_string(counts[0]) + " on the device, " +
                           std::to_string(counts[2]) + " in host memory, " +
                           std::to_string(counts[3]) + " on NVMe");
  }
}

void note_host_homes(Plan& plan) {
  bool weights = false, sums = false, copied = false;
  for (const UnitPlacement& unit : plan.units) {
    weights |= unit.weights == Tier::host && weights_used_at_home(unit);
    if (unit.frozen || unit.gradients != Tier::host) continue;
    sums |= gradients_used_at_home(unit);
    copied |= unit.uses_host_homes && !unit.sums_in_host_homes;
  }
  if (!weights && !sums) return;
  plan.choices.push_back(
      std::string(weights ? "weights" : "") + (weights && sums ? " and " : "") +
      (sums ? "gradients" : "") +
      " in host memory are used there: the device is the host, without memory of its own" +
      (copied ? "; gradients have buffers too, since updates on NVMe hold both slots" : ""));
}

// `stay`: by unit, whether its gradients stay on the GPU for the sake of speed.
void note_choices(Plan& plan, const Overlap& overlap, const Preferences& preferences,
                  std::size_t on_gpu, const std::vector<bool>& stay) {
  std::vector<bool> kept(plan.units.size(), false);
  for (std::size_t u = 0; u < on_gpu; ++u) kept[u] = !plan.units[u].frozen;
  note_spill(plan, "weights", tier_of(plan.config.zero.offload_param.device),
             &UnitPlacement::weights, kept);
  note_spill(plan, "optimizer states", tier_of(plan.config.zero.offload_optimizer.device),
             &UnitPlacement::states, kept);
  const Tier states = tier_of(plan.config.zero.offload_optimizer.device);
  const bool on_device = states == Tier::device || plan.gradients_summed_on_device();
  std::vector<bool> wait_on_gpu = are_summed_on_gpu(plan);
  for (std::size_t u = 0; u < plan.units.size(); ++u)
    wait_on_gpu[u] =
        kept[u] || stay[u] || (wait_on_gpu[u] && plan.units[u].gradients == Tier::device);
  note_spill(plan, "gradients waiting for the norm", on_device ? Tier::device : Tier::host,
             &UnitPlacement::gradients, on_device ? std::vector<bool>() : wait_on_gpu);
  note_halves_in_weights(plan);
  note_activations(plan, preferences);
  note_host_homes(plan);
  if (plan.config.sluice.overlap && overlap.prefetch_units == 0 &&
      plan.config.zero.prefetch_bucket_size > 0) {
    plan.choices.push_back("no prefetch: the device budget holds one gathered unit, not two");
  }
  if (plan.config.sluice.overlap && overlap.gradients_in_flight == 1) {
    plan.choices.push_back(
        "gradients leave the device before the next unit's backward: the device budget holds one "
        "gradient buffer, not two");
  }
}

void use_overlap_and_rings(Plan& plan, const Overlap& overlap, const RingSizes& rings) {
  plan.schedule.prefetch_units = overlap.prefetch_units;
  plan.schedule.gradients_in_flight = overlap.gradients_in_flight;
  plan.rings.update.tile_bytes = update_tile_bytes(plan, rings.update_tile_elements);
  plan.rings.mover.tile_bytes = moves_files(plan) ? rings.mover_tile_bytes : 0;
  plan.rings.mover.tiles = rings.mover_tiles;
  plan.rings.update.tile_elements = rings.update_tile_elements;
  plan.rings.update.tiles = rings.update_tiles;
  plan.rings.gradient_slot_bytes = gradient_slot_bytes(plan);
  plan.rings.gradient_slots = plan.rings.gradient_slot_bytes > 0 ? rings.gradient_slots : 0;
}

// Device memory that the budget has left, beside blocks that stay mapped between their uses.
std::uint64_t room_beside(const Plan& plan, const StepModel& model, const Overlap& overlap,
                          std::uint64_t tiles_bytes) {
  const DeviceTransient transient = model.peak(plan.units, overlap);
  const std::uint64_t need = home_bytes(plan, Tier::device) + tiles_bytes + transient.total() +
                             most_kept_bytes(plan, transient.workspace_bytes);
  return over(*plan.budget.device_bytes, need);
}

// A sum in a slot holds it from the begin of the unit's backward to the end of its update. With two
// slots each backward would wait for the drive. So gradients are summed in buffers of the device,
// where it has room for them, and take a slot when they are complete.
void sum_beside_slots(Plan& plan, const TierNeeds& needs, std::uint64_t tiles_bytes) {
  const bool on_nvme =
      std::any_of(plan.units.begin(), plan.units.end(),
                  [](const UnitPlacement& unit) { return unit.states == Tier::nvme; });
  const bool waits = plan.rings.gradient_slots == kLeastGradientSlots && on_nvme;
  if (!waits || !plan.config.sluice.overlap || !plan.units.front().sums_in_host_homes) return;
  for (UnitPlacement& unit : plan.units) unit.sums_in_host_homes = false;
  if (needs.device_bytes() + tiles_bytes <= *plan.budget.device_bytes) return;
  for (UnitPlacement& unit : plan.units) unit.sums_in_host_homes = true;
}

struct Placed {
  Shortfall shortfall;
  std::vector<UnitPlacement> leaving;  // the units when all had left the device that must
};

Placed place_with(Plan& plan, const StepModel& model, const Overlap& overlap,
                  const RingSizes& rings, const Preferences& preferences, std::size_t on_gpu) {
  plan.rings.update.device_tiles = 0;
  place_as_asked(plan, rings, preferences, on_gpu);
  plan.choices.clear();
  Placed placed;
  Shortfall& shortfall = placed.shortfall;
  const TierNeeds needs = needs_of(plan, model, overlap, rings);

  Demotion from_device(items_in_order(plan, Tier::device, preferences), Tier::device, Tier::host);
  from_device.until(needs.device_bytes, preferences.least_on_device ? 0 : room_for_homes(plan));
  // Where the host has no room for what leaves, the loop's tensors get the rest.
  if (shares_budget_with_loop(plan) && !preferences.least_on_device &&
      needs.host_bytes() > *plan.budget.host_bytes)
    from_device.until(needs.device_bytes, *plan.budget.device_bytes);
  placed.leaving = plan.units;
  cache_as_asked(plan, preferences);
  if (needs.host_bytes() > *plan.budget.host_bytes) drop_cache(plan);
  if (!preferences.least_on_device) promote_to_device(plan, needs);
  shortfall.device_bytes = over(needs.device_bytes(), *plan.budget.device_bytes);

  Demotion from_host(items_in_order(plan, Tier::host, preferences), Tier::host, Tier::nvme);
  from_host.until(needs.host_bytes, *plan.budget.host_bytes);
  if (from_host.count() > 0 && !has_directory(plan)) {
    shortfall.no_directory = true;
    from_host.demote(0);  // the shortfall is for a host budget without spills
  }
  shortfall.host_bytes = over(needs.host_bytes(), *plan.budget.host_bytes);

  use_overlap_and_rings(plan, overlap, rings);
  if (!shortfall.fits()) return placed;
  const TierBytes room{*plan.budget.device_bytes - needs.device_bytes(),
                       *plan.budget.host_bytes - needs.host_bytes(), 0};
  const std::uint64_t flags_bytes = update_flags_bytes(plan).device;
  const TierBytes tiles = add_device_tiles(plan, room);
  const std::uint64_t host_left = use_spare_memory(plan, preferences, room.host - tiles.host);
  keep_gradient_sums(plan, room.device - tiles.device);
  sum_beside_slots(plan, needs, tiles.device);
  retain_units(plan, model, overlap, preferences,
               home_bytes(plan, Tier::device) + flags_bytes + tiles.device);
  const std::uint64_t device_left = room_beside(plan, model, overlap, flags_bytes + tiles.device);
  const std::vector<bool> stay =
      keep_gradients_on_gpu(plan, preferences, {device_left, host_left, 0});
  note_choices(plan, overlap, preferences, on_gpu, stay);
  return placed;
}

}  // namespace

LeastBytes least_bytes(Plan plan, const StepModel& model, const Overlap& overlap,
                       const RingSizes& rings) {
  const Preferences usual;
  place_as_asked(plan, rings, usual, 0);
  const TierNeeds needs = needs_of(plan, model, overlap, rings);
  Demotion from_device(items_in_order(plan, Tier::device, usual), Tier::device, Tier::host);
  from_device.until(needs.device_bytes, 0);
  cache_as_asked(plan, usual);
  const std::uint64_t with_cache = needs.host_bytes();
  drop_cache(plan);
  Demotion from_host(items_in_order(plan, Tier::host, usual), Tier::host, Tier::nvme);
  if (has_directory(plan)) from_host.until(needs.host_bytes, 0);
  return {needs.device_bytes(), std::min(needs.host_bytes(), with_cache)};
}

Shortfall place(Plan& plan, const StepModel& model, const Overlap& overlap, const RingSizes& rings,
                const Preferences& preferences) {
  const auto with = [&](std::size_t on_gpu) {
    return place_with(plan, model, overlap, rings, preferences, on_gpu);
  };
  const Placed without = with(0);
  if (!wants_states_on_gpu(plan)) return without.shortfall;
  const std::vector<UnitPlacement> units = plan.units;
  const Spread before{without.leaving, units};
  const TryUnitsOnGpu attempt = [&](std::size_t on_gpu) {
    const Placed placed = with(on_gpu);
    const bool leaves_room =
        needs_of(plan, model, overlap, rings).device_bytes() <= room_beside_activations(plan);
    if (placed.shortfall.device_bytes > 0 || !leaves_room) return UnitsOnGpu::too_many;
    if (!placed.shortfall.fits()) return UnitsOnGpu::too_few;
    const bool good = leaves_the_rest({placed.leaving, plan.units}, before, on_gpu) &&
                      has_kept_blocks(plan, model, overlap);
    return good ? UnitsOnGpu::fit : UnitsOnGpu::too_many;
  };
  const std::size_t most = preferences.least_on_device ? 0 : most_on_gpu(plan, attempt);
  const Shortfall shortfall = with(most).shortfall;
  if (shortfall.fits()) note_states_on_gpu(plan, most);
  return shortfall;
}

void place_resident(Plan& plan) {
  plan.units.assign(plan.layouts.size(), UnitPlacement{});
  const config::Activations activations = plan.config.sluice.activations;
  const bool save =
      activations == config::Activations::automatic || activations == config::Activations::keep;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    plan.units[u].frozen = plan.layouts[u].frozen;
    plan.units[u].device_host_addressable = plan.device.host_addressable;
    plan.units[u].device_has_kernels = plan.device.has_update_kernels;
    if (plan.own_loop()) continue;
    if (u > 0) plan.units[u].inputs.assign(plan.schedule.passes.last, Tier::device);
    plan.units[u].activations_saved = save && u + 1 < plan.units.size();
  }
  use_overlap_and_rings(plan, {plan.config.sluice.overlap ? 1 : 0, 1},
                        ring_size_ladder(plan).front());
}

}  // namespace sluice::plan
