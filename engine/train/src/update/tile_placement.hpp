#pragma once
// TilePlacement: owns the memory of optimizer states, and knows where an update finds each part of
// a tile: at the part's home, or in the tile's own memory. It moves no bytes. Not installed.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "sluice/models/state_format.hpp"
#include "sluice/offload/tiered_bytes.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/plan/tile_layout.hpp"
#include "sluice/plan/unit_placement.hpp"
#include "sluice/zero/unit_layout.hpp"
#include "update/optimizer_tile.hpp"
#include "update/tile_range.hpp"
#include "update/updater_resources.hpp"

namespace sluice::train {

// The home of one part of a unit's states.
struct PartHome {
  plan::PartPlace place = plan::PartPlace::memory;
  std::optional<std::size_t> shard;  // index in the store; none: the part is not in the store
  // Holds the part if `place` is memory, or if the states are on a device that is not host
  // addressable.
  offload::TieredBytes memory;
  // Memory for the results of a speculative update; only where the plan gives the unit second
  // states.
  offload::TieredBytes second;
};
// By part of the format.
using StateHome = std::vector<PartHome>;

// The bytes of `range` in a home that the CPU can address.
inline std::span<std::byte> host_bytes_in(const offload::Device& device,
                                          const offload::TieredBytes& home, const TileRange& range,
                                          std::size_t element_bytes) {
  return home.host_view(device).subspan(range.begin * element_bytes, range.count * element_bytes);
}
// The bytes of `range` in a home on the device.
inline offload::DeviceSpan device_span_in(const offload::TieredBytes& home, const TileRange& range,
                                          std::size_t element_bytes) {
  return home.device_memory().subspan(range.begin * element_bytes, range.count * element_bytes);
}

// Thread-safe: constant after construction, except exchange_states().
class TilePlacement {
 public:
  using Bytes = std::span<std::byte>;

  // Allocates the states whose home is memory. `resources` outlives the placement. Throws
  // OutOfMemory.
  explicit TilePlacement(const UpdaterResources& resources);
  TilePlacement(const TilePlacement&) = delete;
  TilePlacement& operator=(const TilePlacement&) = delete;

  const StateHome& home(std::size_t unit) const { return homes_[unit]; }
  // Elements of all units before `unit`.
  std::uint64_t first_element(std::size_t unit) const { return first_elements_[unit]; }
  // Elements of this rank's shard.
  std::uint64_t shard_count(std::size_t unit) const;
  // Whether the CPU uses all bytes of the unit's updates at their homes, and nothing leaves them:
  // the unit needs no tile.
  bool at_home(std::size_t unit) const { return at_home_[unit]; }
  std::uint64_t tile_elements() const { return plan_.rings.update.tile_elements; }
  // The tiles that have some of these elements of the shard; without elements, all.
  TileSpan tiles_of(std::size_t unit, const std::optional<zero::ShardRange>& elements) const;
  TileRange range_of(std::size_t unit, std::size_t tile) const;

  // Size of a tile's memory. 0: every part is computed on at its home.
  std::uint64_t tile_bytes() const { return offsets_.total; }
  // Makes the unit's second states its states, and the other way round. Parts that are in the
  // unit's weights stay. Called while no work on the unit computes.
  void exchange_states(std::size_t unit);
  // Where the parts of `range` are in the unit's second states.
  StateSpans second_states(const TileRange& range) const;

  // Where the parts of `range` are while its work computes. `tile`: the memory of that tile.
  StateSpans states(const TileRange& range, Bytes tile) const;
  Bytes gradient(const TileRange& range, Bytes tile) const;
  // Empty if the weight is half of a split master.
  Bytes weight(const TileRange& range, Bytes tile) const;

 private:
  StateHome make_home(std::size_t unit) const;
  bool is_at_home(std::size_t unit) const;

  const UpdaterResources& resources_;
  const plan::Plan& plan_;
  const models::StateFormat format_;
  const plan::TileLayout offsets_;
  std::vector<StateHome> homes_;               // by unit
  std::vector<std::uint64_t> first_elements_;  // by unit
  std::vector<bool> at_home_;                  // by unit
};

}  // namespace sluice::train
