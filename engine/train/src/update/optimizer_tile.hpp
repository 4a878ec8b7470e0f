#pragma once
// Views of a tile's bytes in the types that the optimizer takes, and the optimizer's step. The plan
// says which types these are. Thread-safe: free functions without state.

#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "sluice/cpu_adam/optimizer.hpp"
#include "sluice/models/param_groups.hpp"
#include "sluice/models/state_format.hpp"
#include "sluice/offload/swap_store.hpp"
#include "sluice/plan/plan.hpp"
#include "update/tile_range.hpp"
#include "update/update_settings.hpp"

namespace sluice::train {

// Bytes of a tile's states, by part of the format.
using StateSpans = std::array<std::span<std::byte>, models::kMostStateParts>;

template <typename T>
std::span<T> as(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

cpu_adam::GradientSpan gradient_span(std::span<std::byte> bytes, DType dtype);
// The master of states in the split format.
cpu_adam::SplitMaster split_master(const StateSpans& states);
// Rounds an fp32 master to the weights: to nearest even, as an update does.
void write_weights(std::span<const float> master, std::span<std::byte> weights, DType dtype);
// Sets the moments to their values before the first update: zero, except Adagrad's sum of squares.
void set_first_moments(const plan::Plan& plan, const StateSpans& states);
// Copies every part, past the caches of the CPU. Parts have equal sizes.
void copy_states(const StateSpans& to, const StateSpans& from);
// All arguments have the same number of elements. `weight` is not used if the master is split,
// because the weight is then half of the master. It may be empty: no weight is written.
cpu_adam::Tile tile_of(const plan::Plan& plan, const StateSpans& states,
                       std::span<std::byte> gradient, std::span<std::byte> weight);

// The state from which training can continue after a step that failed, as a sentence without its
// point. `store`: holds the states; may be null.
std::string remaining_state(const plan::Plan& plan, const offload::SwapStore* store);

// Calls `visit` for the elements of each parameter group in `range`, in order. `elements`: where
// they are in the unit's flat buffer. `part`: their memory, a part of `tile`.
using GroupVisit =
    std::function<void(const models::GroupSegment& elements, const cpu_adam::Tile& part)>;
void for_each_group(const plan::Plan& plan, const TileRange& range, const cpu_adam::Tile& tile,
                    const GroupVisit& visit);

// Throws step_piece()'s error if an element that `range` updated is non-finite. Reads master and
// moments of `tile`, and no other memory.
void check_finite(const plan::Plan& plan, const offload::SwapStore* store,
                  const UpdateSettings& settings, const TileRange& range,
                  const cpu_adam::Tile& tile);

// Updates the elements of `range`, each with the values of its parameter group. `tile`: their
// memory. Throws when the update gave a non-finite value; the error names the parameter, the likely
// cause and the state that remains. Padding does not count: its gradients are always 0, so with an
// epsilon of 0 it becomes 0 / 0. `store`: as above.
void step_piece(const plan::Plan& plan, const offload::SwapStore* store,
                const UpdateSettings& settings, const TileRange& range, const cpu_adam::Tile& tile);

}  // namespace sluice::train
