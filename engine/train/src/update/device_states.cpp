#include "update/device_states.hpp"

namespace sluice::train {

std::uint64_t begin_far_reads(offload::Device& device, const models::StateFormat& format,
                              const StateHome& home, const offload::TieredBytes& weights,
                              const TileRange& range, const StateSpans& tile,
                              const offload::ComputePoint& after, offload::Tickets& tickets) {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < home.size(); ++i) {
    const bool is_weight = format.is_split() && i == 0;
    const auto from =
        bytes_in(is_weight ? weights : home[i].memory, range, format.part(i).element_bytes);
    tickets.push_back(device.begin_copy_out(tile[i], from, after));
    bytes += from.size();
  }
  return bytes;
}

std::uint64_t begin_far_writes(offload::Device& device, const models::StateFormat& format,
                               const StateHome& home, const TileRange& range,
                               const StateSpans& tile, const offload::ComputePoint& after,
                               offload::Tickets& tickets) {
  std::uint64_t bytes = 0;
  for (std::size_t i = format.is_split() ? 1 : 0; i < home.size(); ++i) {
    const auto to = bytes_in(home[i].memory, range, format.part(i).element_bytes);
    tickets.push_back(device.begin_copy_in(to, tile[i], after));
    bytes += to.size();
  }
  return bytes;
}

}  // namespace sluice::train
