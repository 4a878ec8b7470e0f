#include "update/device/device_step.hpp"

#include <span>

#include "sluice/cpu_adam/step_arguments.hpp"
#include "update/optimizer_tile.hpp"

namespace sluice::train {

namespace {

// Addresses of the device in the form that cpu_adam takes; step_arguments() reads none of them.
std::span<std::byte> addresses(const offload::DeviceSpan& memory) {
  return {static_cast<std::byte*>(memory.address()), memory.size_bytes()};
}

}  // namespace

void issue_update(const UpdaterResources& resources, const UpdateSettings& settings,
                  const TileRange& range, const DeviceTile& tile, std::uint64_t first_element,
                  void* stream) {
  StateSpans states;
  for (std::size_t i = 0; i < states.size(); ++i) states[i] = addresses(tile.states[i]);
  cpu_adam::Tile all =
      tile_of(*resources.plan, states, addresses(tile.gradient), addresses(tile.weight));
  all.first_element = first_element + range.begin;
  auto* const non_finite = static_cast<std::uint32_t*>(tile.non_finite.address());
  for_each_group(*resources.plan, range, all,
                 [&](const models::GroupSegment& elements, const cpu_adam::Tile& part) {
                   for (const cpu_adam::StepArguments& step : cpu_adam::step_arguments(
                            settings.groups[elements.group], settings.step, part))
                     resources.issue_step(step, non_finite, stream);
                 });
}

cpu_adam::Tile tile_at_home(const UpdaterResources& resources, const TilePlacement& placement,
                            const TileRange& range, const DeviceTile& tile) {
  return tile_of(*resources.plan, placement.states(range, {}), addresses(tile.gradient),
                 addresses(tile.weight));
}

}  // namespace sluice::train
