#include "update/device/device_step.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

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

void check_finite_at_home(const UpdaterResources& resources, const TilePlacement& placement,
                          const UpdateSettings& settings, const TileRange& range,
                          const DeviceTile& tile) {
  const plan::Plan& plan = *resources.plan;
  const StateHome& home = placement.home(range.unit);
  constexpr std::uint64_t kPart = 1U << 20U;  // elements that are copied to the host at a time
  for (std::uint64_t at = 0; at < range.count; at += kPart) {
    const TileRange part{range.unit, range.begin + at, std::min(kPart, range.count - at)};
    const auto of_part = [&](const offload::DeviceSpan& all) {
      const std::uint64_t element_bytes = all.size_bytes() / range.count;
      return all.subspan(at * element_bytes, part.count * element_bytes);
    };
    std::array<std::vector<std::byte>, models::kMostStateParts> copies;
    StateSpans states;
    for (std::size_t i = 0; i < home.size(); ++i) {
      if (home[i].place == plan::PartPlace::memory) {
        states[i] = host_bytes_in(*resources.device, home[i].memory, part,
                                  plan.state_format.part(i).element_bytes);
        continue;
      }
      const offload::DeviceSpan from = of_part(tile.states[i]);
      copies[i].resize(from.size_bytes());
      states[i] = copies[i];
      resources.device->begin_copy_out(states[i], from, {}).finish();
    }
    check_finite(
        plan, resources.store, settings, part,
        tile_of(plan, states, addresses(of_part(tile.gradient)), addresses(of_part(tile.weight))));
  }
}

}  // namespace sluice::train
