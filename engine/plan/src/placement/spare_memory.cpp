#include "placement/spare_memory.hpp"

#include <algorithm>
#include <string>

#include "placement/ring_sizes.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/text.hpp"
#include "step/home_bytes.hpp"

namespace sluice::plan {

using offload::pool_bytes;
using offload::Tier;

namespace {

// The bytes that the configuration asks for, of the states that it is about.
std::uint64_t bytes_asked_for(const config::ByteBudget& budget, std::uint64_t state_bytes) {
  switch (budget.kind) {
    case config::ByteBudget::Kind::bytes:
      return budget.value;
    case config::ByteBudget::Kind::percent:
      return state_bytes / 100 * budget.value + state_bytes % 100 * budget.value / 100;
    case config::ByteBudget::Kind::automatic:
      return state_bytes;
  }
  return 0;
}

// Visits the parts of states that are on NVMe, in unit order.
template <typename Visit>
void each_stored_part(const Plan& plan, const Visit& visit) {
  const models::StateFormat& format = plan.state_format;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    if (plan.units[u].frozen || plan.units[u].states != Tier::nvme) continue;
    for (std::size_t part = 0; part < format.part_count(); ++part) {
      if (place_of_part(plan.units[u], format, part) != PartPlace::weights) visit(u, part);
    }
  }
}

std::uint64_t stored_bytes(const Plan& plan) {
  std::uint64_t sum = 0;
  each_stored_part(plan,
                   [&](std::size_t u, std::size_t part) { sum += part_bytes(plan, u, part); });
  return sum;
}

// Fills the cache in unit order: the next step waits for the first units' updates first. Returns
// the cache's bytes.
std::uint64_t fill_cache(Plan& plan, std::uint64_t limit) {
  std::uint64_t used = 0;
  each_stored_part(plan, [&](std::size_t u, std::size_t part) {
    const std::uint64_t size_bytes = part_bytes(plan, u, part);
    if (used + size_bytes > limit) return;
    plan.units[u].cached[part] = true;
    used += size_bytes;
  });
  return used;
}

// Whether the updates of states in memory may be slower than the backward of the last pass: on a
// GPU, with few tokens. 26 bytes of an element at 180 GB/s of host memory take as long as its 4
// operations for each of 18,000 tokens at 500 TFLOP/s; twice that leaves room for other machines.
bool updates_may_lag(const Plan& plan) {
  constexpr std::int64_t kTokensThatHideUpdates = 36'000;
  if (!plan.device.gpu || plan.own_loop()) return false;
  const std::int64_t tokens = static_cast<std::int64_t>(plan.schedule.passes.last) *
                              plan.config.micro_batch_size * plan.model.n_positions;
  return tokens < kTokensThatHideUpdates;
}

// Gradients wait while updates are slower than backward. Then adds as many slots as the room holds.
// Returns the bytes of the slots that it adds.
std::uint64_t add_gradient_slots(Plan& plan, std::uint64_t room_bytes) {
  if (plan.rings.gradient_slots == 0) return 0;
  const auto use_slots = [](const UnitPlacement& unit) { return unit.gradients_use_slots; };
  const auto on_nvme = [](const UnitPlacement& unit) { return unit.states == Tier::nvme; };
  const auto units = std::count_if(plan.units.begin(), plan.units.end(), use_slots);
  // Where backward is the slower one, one more slot is enough.
  const bool lag =
      std::any_of(plan.units.begin(), plan.units.end(), on_nvme) || updates_may_lag(plan);
  const auto most = lag ? units : std::min<std::ptrdiff_t>(units, kLeastGradientSlots + 1);
  const std::uint64_t slot_bytes = pool_bytes(plan.rings.gradient_slot_bytes);
  const int slots = static_cast<int>(std::min<std::uint64_t>(
      static_cast<std::uint64_t>(most),
      static_cast<std::uint64_t>(plan.rings.gradient_slots) + room_bytes / slot_bytes));
  const int more = std::max(0, slots - plan.rings.gradient_slots);
  plan.rings.gradient_slots += more;
  return static_cast<std::uint64_t>(more) * slot_bytes;
}

// How many gradients of a user's loop are in memory, where that is not two or three units' as
// usual.
void note_updates_in_backward(Plan& plan) {
  if (!plan.own_loop() || !plan.updates_in_backward()) return;
  if (plan.config.gradient_accumulation_steps > 1) {
    plan.choices.push_back(
        "optimizer_in_backward: saves no memory, because the gradients of all units wait between "
        "the micro-batches of a step");
  } else if (plan.rings.gradient_slots > kLeastGradientSlots + 1) {
    plan.choices.push_back(
        "optimizer_in_backward: " + std::to_string(plan.rings.gradient_slots) +
        " slots of gradients, because updates on a drive may be slower than backward; a smaller "
        "host_bytes has fewer");
  }
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
  if (plan.rings.update.tile_elements < kUsualTileElements)
    room_bytes = std::min(room_bytes, bytes_for_small_tiles(plan));
  const std::uint64_t tiles = std::min(tiles_to_read(plan), room_bytes / tile_bytes);
  plan.rings.update.read_ahead_tiles = static_cast<int>(tiles);
  return tiles * tile_bytes;
}

// Empty, or why no update of the plan has anything to begin before.
std::string why_no_second_states(const Plan& plan, std::uint64_t state_bytes) {
  if (!plan.config.sluice.overlap) return "overlap is off";
  if (plan.updates_in_backward()) {
    return plan.own_loop() ? "with optimizer_in_backward no update waits for step()"
                           : "without gradient_clipping and fp16, no update waits for a norm";
  }
  if (state_bytes == 0) return "no optimizer states are in host memory";
  return "";
}

struct Taken {
  std::uint64_t bytes = 0;
  std::ptrdiff_t units = 0;
};

// Gives memory for all parts of their states to units that can have it, the last ones first, up to
// `limit` bytes. `has_it`: what says so in the plan.
template <typename CanHave>
Taken take_last_units(Plan& plan, std::uint64_t limit, const CanHave& can_have,
                      bool UnitPlacement::*has_it) {
  Taken taken;
  for (std::size_t u = plan.units.size(); u-- > 0;) {
    const std::uint64_t size_bytes = all_parts_bytes(plan, u);
    if (!can_have(u) || taken.bytes + size_bytes > limit) continue;
    plan.units[u].*has_it = true;
    taken.bytes += size_bytes;
    ++taken.units;
  }
  return taken;
}

// Room for the results of updates that begin before the norm is known, or in a loop of the user's
// own before step(). The last units come first: their gradients do. The first unit's gradient comes
// last, with the norm. Returns the bytes.
std::uint64_t add_second_states(Plan& plan, std::uint64_t room_bytes) {
  const config::ByteBudget& budget = plan.config.sluice.updates.speculative_bytes;
  if (budget.kind == config::ByteBudget::Kind::bytes && budget.value == 0) return 0;
  const auto can_have = [&](std::size_t u) {
    return u > 0 && plan.units[u].states == Tier::host && !plan.units[u].frozen &&
           !half_copied_to_tile(plan.units[u], plan.state_format);
  };
  std::uint64_t all_bytes = 0;
  for (std::size_t u = 0; u < plan.units.size(); ++u)
    all_bytes += can_have(u) ? all_parts_bytes(plan, u) : 0;
  if (const std::string why = why_no_second_states(plan, all_bytes); !why.empty()) {
    plan.choices.push_back("speculative_bytes: unused, because " + why);
    return 0;
  }
  const std::uint64_t asked = bytes_asked_for(budget, all_bytes);
  const std::uint64_t limit = std::min(asked, room_bytes);
  const auto [used, units] = take_last_units(plan, limit, can_have, &UnitPlacement::second_states);
  std::string line = "speculative_bytes: " + format_bytes(used) +
                     " of host memory, so the updates of " + std::to_string(units) + " of " +
                     std::to_string(plan.units.size()) + " units begin before " +
                     (plan.own_loop() ? "step()" : "the norm is known");
  const bool cut =
      budget.kind != config::ByteBudget::Kind::automatic && limit < asked && limit < all_bytes;
  if (cut) line += "; " + format_bytes(asked) + " were asked for, but host_bytes has no more room";
  plan.choices.push_back(line);
  return used;
}

std::string why_no_copies(const Plan& plan, std::uint64_t state_bytes) {
  if (plan.own_loop()) return "a loop of the user's own waits for its checkpoints";
  if (state_bytes == 0) return "all states are on NVMe";
  return plan.config.sluice.overlap ? "" : "overlap is off";
}

// Room for copies of the states, so that steps go on while a checkpoint is written. The last units
// come first: without clipping, their updates do. Returns the bytes.
std::uint64_t add_checkpoint_copies(Plan& plan, std::uint64_t room_bytes) {
  const config::CheckpointConfig& checkpoints = plan.config.sluice.checkpoints;
  if (checkpoints.every == 0 || checkpoints.directory.empty()) return 0;
  const auto can_have = [&](std::size_t u) {
    return plan.units[u].states != Tier::nvme && !plan.units[u].frozen;
  };
  std::uint64_t all_bytes = 0;
  std::ptrdiff_t trained = 0;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    all_bytes += can_have(u) ? all_parts_bytes(plan, u) : 0;
    trained += plan.units[u].frozen ? 0 : 1;
  }
  const std::uint64_t asked = bytes_asked_for(checkpoints.copy_bytes, all_bytes);
  const bool given = checkpoints.copy_bytes.kind != config::ByteBudget::Kind::automatic;
  if (const std::string why = why_no_copies(plan, all_bytes); !why.empty()) {
    if (given && checkpoints.copy_bytes.value > 0)
      plan.choices.push_back("checkpoint_bytes: unused, because " + why);
    return 0;
  }
  const std::uint64_t limit = std::min(asked, room_bytes);
  const auto [used, units] =
      take_last_units(plan, limit, can_have, &UnitPlacement::checkpoint_copy);
  std::string line = "checkpoint_bytes: " + format_bytes(used) +
                     " of host memory, so steps go on while the states of " +
                     std::to_string(units) + " of " + std::to_string(trained) +
                     " units are written to a checkpoint";
  if (units < trained) line += "; the next updates of the others wait until these are written";
  if (given && limit < asked && limit < all_bytes)
    line += "; " + format_bytes(asked) + " were asked for, but host_bytes has no more room";
  plan.choices.push_back(line);
  return used;
}

// Fills the cache, unless cache_as_asked() has, and returns the bytes that this takes of the room.
// Cached parts need no room in a tile and no read-ahead.
std::uint64_t add_cache(Plan& plan, std::uint64_t room_bytes) {
  const config::ByteBudget& budget = plan.config.sluice.cache_bytes;
  const std::uint64_t stored = stored_bytes(plan);
  const std::uint64_t asked = bytes_asked_for(budget, stored);
  if (asked == 0 || stored == 0) return 0;
  const std::uint64_t before = cached_bytes(plan);
  const std::uint64_t limit = before > 0 ? asked : std::min(asked, room_bytes);
  const std::uint64_t used = before > 0 ? before : fill_cache(plan, limit);
  std::string line = "cache: " + format_bytes(used) + " of " + format_bytes(stored) +
                     " of the states on NVMe are in host memory too";
  const bool cut =
      budget.kind != config::ByteBudget::Kind::automatic && limit < asked && limit < stored;
  if (cut) line += "; " + format_bytes(asked) + " were asked for, but host_bytes has no more room";
  plan.choices.push_back(line);
  plan.rings.update.tile_bytes = update_tile_bytes(plan, plan.rings.update.tile_elements);
  if (tiles_to_read(plan) == 0) plan.rings.update.read_ahead_tiles = 0;
  return used - before;
}

bool is_cache_first(const Plan& plan, const Preferences& preferences) {
  const bool asked = plan.config.sluice.cache_bytes.kind != config::ByteBudget::Kind::automatic;
  return asked || !preferences.cache_last;
}

}  // namespace

void cache_as_asked(Plan& plan, const Preferences& preferences) {
  if (!is_cache_first(plan, preferences)) return;
  fill_cache(plan, bytes_asked_for(plan.config.sluice.cache_bytes, stored_bytes(plan)));
}

void drop_cache(Plan& plan) {
  for (UnitPlacement& unit : plan.units) unit.cached = {};
}

std::uint64_t use_spare_memory(Plan& plan, const Preferences& preferences,
                               std::uint64_t room_bytes) {
  const bool cache_first = is_cache_first(plan, preferences);
  plan.rings.update.read_ahead_tiles = 0;
  if (cache_first) room_bytes -= add_cache(plan, room_bytes);
  if (preferences.read_ahead_first) room_bytes -= add_read_ahead(plan, room_bytes);
  room_bytes -= add_gradient_slots(plan, room_bytes);
  note_updates_in_backward(plan);
  if (!preferences.read_ahead_first) room_bytes -= add_read_ahead(plan, room_bytes);
  if (!cache_first) room_bytes -= add_cache(plan, room_bytes);
  room_bytes -= add_second_states(plan, room_bytes);
  return room_bytes - add_checkpoint_copies(plan, room_bytes);
}

}  // namespace sluice::plan
