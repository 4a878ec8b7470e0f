#pragma once
// The placement of one unit: the tier of its weights, gradients, optimizer states and inputs, and
// where an update finds each of them. Thread-safe: values and free functions without state.

#include <array>
#include <cstddef>
#include <vector>

#include "sluice/models/state_format.hpp"
#include "sluice/offload/tier.hpp"

namespace sluice::plan {

// Where an update finds one part of a unit's states.
// - weights: in the unit's weights, which are one half of a split master.
// - memory: in memory of its own, on the tier of the states, or in the cache of states on NVMe.
// - tile: in the tile. The update reads the part from NVMe, or copies it from a device whose memory
//   is not host_addressable, and writes it back. From the device come all parts, or the upper half
//   of a split master alone.
enum class PartPlace { weights, memory, tile };

// The tiers of one unit's bytes. A frozen unit has weights only.
struct UnitPlacement {
  bool frozen = false;
  bool device_host_addressable = true;  // as DeviceFacts::host_addressable
  bool device_has_kernels = true;       // as DeviceFacts::has_update_kernels
  // The device is the host and imitates no other one: weights at home in host memory are used
  // there.
  bool uses_host_homes = false;
  // So are gradients: a backward adds to them at home.
  bool sums_in_host_homes = false;
  offload::Tier weights = offload::Tier::device;    // 16-bit (or fp32) weights
  offload::Tier gradients = offload::Tier::device;  // that wait for the norm or their update
  offload::Tier states = offload::Tier::device;     // master and moments
  // By part of the states: host memory caches the part, whose home is NVMe.
  std::array<bool, models::kMostStateParts> cached{};
  // Host memory has room for the results of an update beside the states, so the update begins
  // before the norm of all gradients is known. Only for states in host memory.
  bool second_states = false;
  // The weights are the only home of a split master's upper half, although the other parts of the
  // states are in host memory. In effect where half_copied_to_tile().
  bool half_in_weights = false;
  // Host memory has room for a copy of the states, from which a checkpoint is written while steps
  // go on. Not for states on NVMe.
  bool checkpoint_copy = false;
  std::vector<offload::Tier> inputs;  // the unit's input, by micro-batch; empty for the embedding
  bool gradients_use_slots = false;   // gradients use one of the shared slots, not a home
  // The device has a buffer of its own for the unit's gradients. In a loop of the user's own they
  // add up there, and go home with the last backward of the step.
  bool sums_on_device = false;
  bool gathered_until_backward = false;  // gathered weights stay from forward to backward
  bool activations_saved = false;        // every micro-batch's activations stay until backward
};

// Where an update of the unit finds part `part` of its states.
PartPlace place_of_part(const UnitPlacement& unit, const models::StateFormat& format,
                        std::size_t part);
// The states are on a device whose memory is not host_addressable: an update copies them to the
// tile and back. It finds the upper half of a split master in the weights where these are in host
// memory.
bool states_copied_to_tile(const UnitPlacement& unit);
// The part has memory of its own, on the tier of the states or in the cache. Others are in the
// weights, or on NVMe alone.
bool part_has_memory(const UnitPlacement& unit, const models::StateFormat& format,
                     std::size_t part);
// The weights can be the only home of a split master's upper half: they are on a device whose
// memory is not host_addressable, and the other parts of the states are in host memory.
bool weights_can_have_half(const UnitPlacement& unit, const models::StateFormat& format);
// The weights are the only home of the upper half: an update copies it to the tile, and sends it
// back as the new weights.
bool half_copied_to_tile(const UnitPlacement& unit, const models::StateFormat& format);
// An update reads states from NVMe. It does not read parts that the cache holds.
bool reads_states_from_nvme(const UnitPlacement& unit, const models::StateFormat& format);
// An update sends the new weights to another tier: to a file, or over the link to the device.
bool update_sends_weights(const UnitPlacement& unit);
// The tile holds the new weights before the update sends them. The weights of a split master are a
// part of the states instead.
bool tile_holds_weights(const UnitPlacement& unit, const models::StateFormat& format);
// The tile holds the gradient: it comes from a file, or from a device whose memory is not
// host_addressable.
bool tile_holds_gradient(const UnitPlacement& unit);

// One rank's weights, or its gradient, are used at home: no copy of them is made on the device.
bool weights_used_at_home(const UnitPlacement& unit);
bool gradients_used_at_home(const UnitPlacement& unit);
// Weights, gradient and states are at home on a device whose memory is not host_addressable, and
// which updates the unit where they are.
bool device_has_all_of(const UnitPlacement& unit);
// The device can update the unit by tiles: weights are there, states come by copies and go back,
// and the gradient comes too or is there.
bool device_can_update(const UnitPlacement& unit);

}  // namespace sluice::plan
