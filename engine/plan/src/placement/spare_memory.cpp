#include "placement/spare_memory.hpp"

#include <algorithm>
#include <string>

#include "placement/ring_sizes.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/text.hpp"
#include "sluice/plan/tile_layout.hpp"
#include "step/home_bytes.hpp"

namespace sluice::plan {

using offload::pool_bytes;
using offload::Tier;

namespace {

// The cache size that the configuration asks for. `stored_bytes`: the states on NVMe.
std::uint64_t cache_asked_for(const config::ByteBudget& budget, std::uint64_t stored_bytes) {
  switch (budget.kind) {
    case config::ByteBudget::Kind::bytes:
      return budget.value;
    case config::ByteBudget::Kind::percent:
      return stored_bytes / 100 * budget.value + stored_bytes % 100 * budget.value / 100;
    case config::ByteBudget::Kind::automatic:
      return stored_bytes;
  }
  return 0;
}

// Fills the cache in unit order: the next step waits for the first units' updates first. Returns
// the cache's bytes.
std::uint64_t fill_cache(Plan& plan, std::uint64_t room_bytes) {
  const models::StateFormat& format = plan.state_format;
  const auto each_part = [&](const auto& visit) {
    for (std::size_t u = 0; u < plan.units.size(); ++u) {
      for (std::size_t part = 0; part < format.part_count() && !plan.units[u].frozen; ++part) {
        if (place_of_part(plan.units[u], format, part) == PartPlace::tile) visit(u, part);
      }
    }
  };
  std::uint64_t stored_bytes = 0;
  each_part([&](std::size_t u, std::size_t part) { stored_bytes += part_bytes(plan, u, part); });
  const config::ByteBudget& budget = plan.config.sluice.cache_bytes;
  const std::uint64_t asked = cache_asked_for(budget, stored_bytes);
  if (asked == 0 || stored_bytes == 0) return 0;
  const std::uint64_t limit = std::min(asked, room_bytes);
  std::uint64_t used = 0;
  each_part([&](std::size_t u, std::size_t part) {
    const std::uint64_t size_bytes = part_bytes(plan, u, part);
    if (used + size_bytes > limit) return;
    plan.units[u].cached[part] = true;
    used += size_bytes;
  });
  std::string line = "cache: " + format_bytes(used) + " of " + format_bytes(stored_bytes) +
                     " of the states on NVMe are in host memory too";
  const bool cut =
      budget.kind != config::ByteBudget::Kind::automatic && limit < asked && limit < stored_bytes;
  if (cut) line += "; " + format_bytes(asked) + " were asked for, but host_bytes has no more room";
  plan.choices.push_back(line);
  return used;
}

// Gradients wait while updates are slower than backward. With states on NVMe, adds as many slots as
// the room holds. Returns the bytes of the slots that it adds.
std::uint64_t add_gradient_slots(Plan& plan, std::uint64_t room_bytes) {
  if (plan.rings.gradient_slots == 0) return 0;
  const auto use_slots = [](const UnitPlacement& unit) { return unit.gradients_use_slots; };
  const auto on_nvme = [](const UnitPlacement& unit) { return unit.states == Tier::nvme; };
  const auto units = std::count_if(plan.units.begin(), plan.units.end(), use_slots);
  // States in memory: an update is faster than any backward pass, so one more slot is enough.
  const auto most = std::any_of(plan.units.begin(), plan.units.end(), on_nvme)
                        ? units
                        : std::min<std::ptrdiff_t>(units, kLeastGradientSlots + 1);
  const std::uint64_t slot_bytes = pool_bytes(plan.rings.gradient_slot_bytes);
  const int slots = static_cast<int>(std::min<std::uint64_t>(
      static_cast<std::uint64_t>(most),
      static_cast<std::uint64_t>(plan.rings.gradient_slots) + room_bytes / slot_bytes));
  const int more = std::max(0, slots - plan.rings.gradient_slots);
  plan.rings.gradient_slots += more;
  return static_cast<std::uint64_t>(more) * slot_bytes;
}

// Tiles of the unit whose states take the most tiles to read.
std::uint64_t tiles_to_read(const Plan& plan) {
  std::uint64_t tiles = 0;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    if (reads_states_from_nvme(plan.units[u], plan.state_format))
      tiles = std::max(tiles, ceil_div(shard_count(plan, u), plan.rings.update.tile_elements));
  }
  return tiles;
}

// Adds tiles for states that are read while their gradients are computed. One unit's tiles are the
// most, because an update waits for one unit at a time. Returns the tiles' bytes.
std::uint64_t add_read_ahead(Plan& plan, std::uint64_t room_bytes) {
  if (!plan.config.sluice.overlap || plan.rings.update.tile_bytes == 0) return 0;
  const std::uint64_t tile_bytes = pool_bytes(plan.rings.update.tile_bytes);
  const std::uint64_t tiles = std::min(tiles_to_read(plan), room_bytes / tile_bytes);
  plan.rings.update.read_ahead_tiles = static_cast<int>(tiles);
  return tiles * tile_bytes;
}

// Fills the cache and returns its bytes. Cached parts need no room in a tile and no read-ahead.
std::uint64_t add_cache(Plan& plan, std::uint64_t room_bytes) {
  const std::uint64_t used = fill_cache(plan, room_bytes);
  plan.rings.update.tile_bytes = tile_layout(plan.units, plan.state_format, plan.compute_dtype,
                                             plan.rings.update.tile_elements)
                                     .total;
  if (tiles_to_read(plan) == 0) plan.rings.update.read_ahead_tiles = 0;
  return used;
}

}  // namespace

void use_spare_memory(Plan& plan, const Preferences& preferences, std::uint64_t room_bytes) {
  const bool asked = plan.config.sluice.cache_bytes.kind != config::ByteBudget::Kind::automatic;
  const bool cache_first = asked || !preferences.cache_last;
  plan.rings.update.read_ahead_tiles = 0;
  if (cache_first) room_bytes -= add_cache(plan, room_bytes);
  if (preferences.read_ahead_first) room_bytes -= add_read_ahead(plan, room_bytes);
  room_bytes -= add_gradient_slots(plan, room_bytes);
  if (!preferences.read_ahead_first) room_bytes -= add_read_ahead(plan, room_bytes);
  if (!cache_first) add_cache(plan, room_bytes);
}

}  // namespace sluice::plan
