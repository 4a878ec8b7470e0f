#include "placement/device_tiles.hpp"

#include <algorithm>
#include <string>

#include "sluice/base/bytes.hpp"
#include "sluice/base/text.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "sluice/plan/tile_layout.hpp"
#include "step/home_bytes.hpp"

namespace sluice::plan {

using offload::pool_bytes;

namespace {

// Two tiles are read, and two written, at a time; the others are computed or wait for the link.
// Fewer than three would be copied and computed one after the other.
constexpr std::uint64_t kMostTiles = 8;
constexpr std::uint64_t kLeastTiles = 3;
// Tiles of the cores, whose weights and gradients wait behind two tiles of the device for the link.
constexpr int kTilesOfCores = 12;

// Adds tiles of the cores. Returns their bytes.
std::uint64_t add_tiles_of_cores(UpdateRing& ring, std::uint64_t room_bytes) {
  const std::uint64_t tile_bytes = pool_bytes(ring.tile_bytes);
  const auto missing = static_cast<std::uint64_t>(std::max(0, kTilesOfCores - ring.tiles));
  const std::uint64_t added = std::min(missing, room_bytes / tile_bytes);
  ring.tiles += static_cast<int>(added);
  return added * tile_bytes;
}

std::string why_none(const Plan& plan, std::uint64_t tile_bytes, const TierBytes& room) {
  if (plan.device.host_addressable) return "the device is the host";
  if (!plan.config.sluice.overlap) return "overlap is off";
  if (!plan.device.has_update_kernels) return "this build has no kernels for updates on this GPU";
  if (tile_bytes == 0)
    return "no unit has its weights at home on the GPU and its states in host memory";
  if (room.device / pool_bytes(tile_bytes) < kLeastTiles) {
    return "the device budget has no room for " + std::to_string(kLeastTiles) + " tiles of " +
           format_bytes(tile_bytes);
  }
  if (room.host < offload::kPageBytes) return "the host budget has no page left";
  return "";
}

}  // namespace

TierBytes add_device_tiles(Plan& plan, TierBytes room) {
  UpdateRing& ring = plan.rings.update;
  if (!plan.config.sluice.updates.on_gpu) return {};
  const TierBytes flags_before = update_flags_bytes(plan);
  room.device -= std::min<std::uint64_t>(room.device, offload::kPageBytes);  // for flags
  const std::uint64_t tile_bytes =
      device_tile_layout(plan.units, plan.state_format, plan.config.gradient_dtype(),
                         ring.tile_elements)
          .total;
  if (const std::string why = why_none(plan, tile_bytes, room); !why.empty()) {
    plan.choices.push_back("gpu_updates: unused, because " + why);
    return {};
  }
  const std::uint64_t tiles = std::min(kMostTiles, room.device / pool_bytes(tile_bytes));
  ring.device_tiles = static_cast<int>(tiles);
  ring.device_tile_bytes = tile_bytes;
  const auto units = std::count_if(plan.units.begin(), plan.units.end(), device_can_update);
  plan.choices.push_back("gpu_updates: the GPU updates part of " + std::to_string(units) + " of " +
                         std::to_string(plan.units.size()) + " units, by " + std::to_string(tiles) +
                         " tiles of " + format_bytes(tile_bytes) +
                         "; their copies are not in the planned traffic");
  const TierBytes flags = update_flags_bytes(plan);
  TierBytes taken{tiles * pool_bytes(tile_bytes) + flags.device - flags_before.device,
                  flags.host - flags_before.host, 0};
  taken.host += add_tiles_of_cores(ring, room.host - taken.host);
  return taken;
}

}  // namespace sluice::plan
