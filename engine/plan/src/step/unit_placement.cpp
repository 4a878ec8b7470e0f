#include "sluice/plan/unit_placement.hpp"

namespace sluice::plan {

using offload::Tier;

bool states_copied_to_tile(const UnitPlacement& unit) {
  return unit.states == Tier::device && !unit.device_host_addressable;
}

bool weights_can_have_half(const UnitPlacement& unit, const models::StateFormat& format) {
  return format.is_split() && !unit.frozen && !unit.device_host_addressable &&
         unit.weights == Tier::device && unit.states == Tier::host && !unit.second_states;
}

bool half_copied_to_tile(const UnitPlacement& unit, const models::StateFormat& format) {
  return unit.half_in_weights && weights_can_have_half(unit, format);
}

PartPlace place_of_part(const UnitPlacement& unit, const models::StateFormat& format,
                        std::size_t part) {
  const bool is_half = format.is_split() && part == 0;
  if (states_copied_to_tile(unit)) {
    return is_half && unit.weights == Tier::host ? PartPlace::weights : PartPlace::tile;
  }
  if (part == 0 && half_copied_to_tile(unit, format)) return PartPlace::tile;
  // An update works in the weights themselves where they are in host memory, or where they share
  // the device with the states.
  const bool weights_beside_states =
      unit.weights == Tier::host || (unit.weights == Tier::device && unit.states == Tier::device);
  if (is_half && weights_beside_states) return PartPlace::weights;
  if (unit.states != Tier::nvme || unit.cached[part]) return PartPlace::memory;
  return PartPlace::tile;
}

bool part_has_memory(const UnitPlacement& unit, const models::StateFormat& format,
                     std::size_t part) {
  const bool in_weights = format.is_split() && part == 0 && unit.weights != Tier::nvme;
  return place_of_part(unit, format, part) == PartPlace::memory ||
         (states_copied_to_tile(unit) && !in_weights);
}

bool reads_states_from_nvme(const UnitPlacement& unit, const models::StateFormat& format) {
  if (unit.states != Tier::nvme) return false;
  for (std::size_t part = 0; part < format.part_count(); ++part) {
    if (!unit.frozen && place_of_part(unit, format, part) == PartPlace::tile) return true;
  }
  return false;
}

bool update_sends_weights(const UnitPlacement& unit) {
  return unit.weights == Tier::nvme ||
         (unit.weights == Tier::device &&
          (unit.states != Tier::device || states_copied_to_tile(unit)));
}

bool tile_holds_gradient(const UnitPlacement& unit) {
  return unit.gradients == Tier::nvme ||
         (unit.gradients == Tier::device && !unit.device_host_addressable);
}

bool tile_holds_weights(const UnitPlacement& unit, const models::StateFormat& format) {
  return !format.is_split() && update_sends_weights(unit);
}

bool weights_used_at_home(const UnitPlacement& unit) {
  return unit.weights == Tier::device || (unit.weights == Tier::host && unit.uses_host_homes);
}

bool gradients_used_at_home(const UnitPlacement& unit) {
  return unit.gradients == Tier::device ||
         (unit.gradients == Tier::host && unit.sums_in_host_homes);
}

bool device_has_all_of(const UnitPlacement& unit) {
  return !unit.frozen && !unit.device_host_addressable && unit.device_has_kernels &&
         unit.weights == Tier::device && unit.gradients == Tier::device &&
         unit.states == Tier::device;
}

bool device_can_update(const UnitPlacement& unit) {
  return !unit.frozen && !unit.device_host_addressable && unit.device_has_kernels &&
         unit.weights == Tier::device && unit.states == Tier::host && unit.gradients != Tier::nvme;
}

}  // namespace sluice::plan
