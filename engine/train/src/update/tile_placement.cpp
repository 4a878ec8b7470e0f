#include "update/tile_placement.hpp"

#include <string>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/models/run_state.hpp"
#include "sluice/plan/tile_layout.hpp"

namespace sluice::train {

using offload::Tier;

TilePlacement::TilePlacement(const UpdaterResources& resources)
    : resources_(resources),
      plan_(*resources.plan),
      format_(plan_.state_format),
      offsets_(plan::tile_layout(plan_.units, format_,
                                 {plan_.compute_dtype, plan_.config.gradient_dtype()},
                                 plan_.rings.update.tile_elements)) {
  std::uint64_t elements = 0;
  for (std::size_t u = 0; u < plan_.units.size(); ++u) {
    homes_.push_back(make_home(u));
    first_elements_.push_back(
        elements +
        zero::shard_range(plan_.layouts[u], plan_.config.rank, plan_.config.world_size).begin);
    at_home_.push_back(is_at_home(u));
    elements += plan_.layouts[u].flat_count;
  }
}

StateHome TilePlacement::make_home(std::size_t u) const {
  StateHome home;
  if (plan_.layouts[u].frozen) return home;
  const plan::UnitPlacement& unit = plan_.units[u];
  const bool on_device = unit.states == Tier::device;
  offload::MemoryPool& pool = on_device ? resources_.device->memory() : *resources_.host_pool;
  for (std::size_t i = 0; i < format_.part_count(); ++i) {
    const models::StatePart part = format_.part(i);
    const std::string name = models::shard_name(plan_.layouts[u], part);
    PartHome& one = home.emplace_back();
    one.place = plan::place_of_part(unit, format_, i);
    if (unit.states == Tier::nvme) one.shard = resources_.store->index_of(name);
    if (plan::part_has_memory(unit, format_, i)) {
      one.memory = offload::TieredBytes(pool.tier(),
                                        pool.allocate(shard_count(u) * part.element_bytes, name));
    }
    if (unit.second_states) {
      one.second = offload::TieredBytes(
          pool.tier(),
          pool.allocate(shard_count(u) * part.element_bytes, name + ", second states"));
    }
  }
  return home;
}

bool TilePlacement::is_at_home(std::size_t u) const {
  const plan::UnitPlacement& unit = plan_.units[u];
  return unit.states != Tier::nvme && !plan::states_copied_to_tile(unit) &&
         !plan::tile_holds_gradient(unit) && !plan::update_sends_weights(unit);
}

std::uint64_t TilePlacement::shard_count(std::size_t unit) const {
  return zero::shard_count(plan_.layouts[unit], plan_.config.world_size);
}

TileSpan TilePlacement::tiles_of(std::size_t unit,
                                 const std::optional<zero::ShardRange>& elements) const {
  const zero::ShardRange range = elements.value_or(zero::ShardRange{0, shard_count(unit)});
  const std::uint64_t each = plan_.rings.update.tile_elements;
  return {static_cast<std::size_t>(range.begin / each),
          static_cast<std::size_t>(ceil_div(range.begin + range.count, each))};
}

TileRange TilePlacement::range_of(std::size_t unit, std::size_t tile) const {
  return tile_at(unit, tile * plan_.rings.update.tile_elements, shard_count(unit),
                 plan_.rings.update.tile_elements);
}

void TilePlacement::exchange_states(std::size_t unit) {
  for (PartHome& part : homes_[unit]) {
    if (part.place == plan::PartPlace::memory) std::swap(part.memory, part.second);
  }
}

StateSpans TilePlacement::second_states(const TileRange& range) const {
  StateSpans spans;
  const StateHome& home = homes_[range.unit];
  for (std::size_t i = 0; i < home.size(); ++i)
    spans[i] =
        host_bytes_in(*resources_.device, home[i].second, range, format_.part(i).element_bytes);
  return spans;
}

StateSpans TilePlacement::states(const TileRange& range, Bytes tile) const {
  StateSpans spans;
  const StateHome& home = homes_[range.unit];
  for (std::size_t i = 0; i < home.size(); ++i) {
    const std::size_t element = format_.part(i).element_bytes;
    switch (home[i].place) {
      case plan::PartPlace::weights:
        spans[i] = host_bytes_in(*resources_.device, resources_.units[range.unit]->weights_home(),
                                 range, element);
        break;
      case plan::PartPlace::memory:
        spans[i] = host_bytes_in(*resources_.device, home[i].memory, range, element);
        break;
      case plan::PartPlace::tile:
        spans[i] = tile.subspan(offsets_.states[i], range.count * element);
        break;
    }
  }
  return spans;
}

TilePlacement::Bytes TilePlacement::gradient(const TileRange& range, Bytes tile) const {
  const std::size_t element = size_of(plan_.config.gradient_dtype());
  if (plan::tile_holds_gradient(plan_.units[range.unit]))
    return tile.subspan(offsets_.gradient, range.count * element);
  return host_bytes_in(*resources_.device, resources_.units[range.unit]->gradients_home(), range,
                       element);
}

TilePlacement::Bytes TilePlacement::weight(const TileRange& range, Bytes tile) const {
  if (format_.is_split()) return {};
  const std::size_t element = size_of(plan_.compute_dtype);
  if (plan::tile_holds_weights(plan_.units[range.unit], format_))
    return tile.subspan(offsets_.weight, range.count * element);
  return host_bytes_in(*resources_.device, resources_.units[range.unit]->weights_home(), range,
                       element);
}

}  // namespace sluice::train
