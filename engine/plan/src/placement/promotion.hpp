#pragma once
// Promotion: bytes that leave host memory for the memory of a GPU, where the host budget is used
// up. Thread-compatible: callers synchronise.

#include <cstdint>
#include <functional>

#include "sluice/plan/plan.hpp"

namespace sluice::plan {

// Needs of a plan as its units are placed now.
struct TierNeeds {
  std::function<std::uint64_t()> device_bytes;
  std::function<std::uint64_t()> host_bytes;
};

// The configuration names a directory of a drive.
bool has_directory(const Plan& plan);

// Free memory of the device may take bytes that the configuration gives to host memory: the device
// is a GPU, and its activations are planned.
bool may_promote(const Plan& plan);

// Bytes of a GPU that homes may fill beside activations: the budget, if may_promote(). Activations
// of a loop of the user's own may be unknown, and get half of the budget. 0 without a GPU.
std::uint64_t room_beside_activations(const Plan& plan);

// Bytes of the device up to which bytes of host memory may fill it: room_beside_activations(). A
// loop with unknown activations may do so only if the configuration names no drive: without that it
// would not run.
std::uint64_t room_for_promotion(const Plan& plan);

// Moves homes from host memory to the device until the host need is within its budget, or the
// device has no more room_for_promotion(). Upper halves of split masters come first: weights on the
// device have them anyway (UnitPlacement::half_in_weights). Then bytes that cost the least traffic
// move first: weights, then gradients, then states; within a kind the last unit comes first. The
// states of a split master take the unit's weights along, which are a part of them. Does nothing
// where the host need is within its budget.
void promote_to_device(Plan& plan, const TierNeeds& needs);
// Adds a line of `choices` where halves have left host memory.
void note_halves_in_weights(Plan& plan);

}  // namespace sluice::plan
