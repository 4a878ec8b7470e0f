#include "update/device/device_states.hpp"

namespace sluice::train {

namespace {

// Parts in the store pass through the tile too, but not from the device.
bool is_copied(const PartHome& home) {
  return home.place == plan::PartPlace::tile && !home.shard;
}

// The part is the weights on the device.
bool is_weight(const DeviceStates& states, std::size_t part) {
  return states.format.is_split() && part == 0 && states.weights.tier() == offload::Tier::device;
}

}  // namespace

std::uint64_t begin_state_copies_out(const DeviceStates& states, const TileCopy& copy,
                                     offload::Tickets& tickets) {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < states.home.size(); ++i) {
    if (!is_copied(states.home[i])) continue;
    const auto from = device_span_in(is_weight(states, i) ? states.weights : states.home[i].memory,
                                     copy.range, states.format.part(i).element_bytes);
    tickets.push_back(states.device.begin_copy_out(copy.tile[i], from, {}));
    bytes += from.size_bytes();
  }
  return bytes;
}

std::uint64_t begin_state_copies_in(const DeviceStates& states, const TileCopy& copy,
                                    offload::Tickets& tickets) {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < states.home.size(); ++i) {
    if (!is_copied(states.home[i]) || is_weight(states, i)) continue;
    const auto to =
        device_span_in(states.home[i].memory, copy.range, states.format.part(i).element_bytes);
    tickets.push_back(states.device.begin_copy_in(to, copy.tile[i], {}));
    bytes += to.size_bytes();
  }
  return bytes;
}

}  // namespace sluice::train
