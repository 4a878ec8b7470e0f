#pragma once
// Bytes that a unit's weights, gradients and optimizer states take in their homes: pool_bytes(), as
// the pools count them. shard_count() counts elements. Thread-safe: free functions without state.

#include <cstddef>
#include <cstdint>

#include "sluice/base/dtype.hpp"
#include "sluice/config/model_config.hpp"
#include "sluice/plan/plan.hpp"

namespace sluice::plan {

// The bytes that a block of `size_bytes`, a value of pool_bytes(), takes of a tier: whole pages of
// a GPU's memory that is mapped in pages, for blocks of at least one page; whole pages of a file.
std::uint64_t block_bytes(const Plan& plan, offload::Tier tier, std::uint64_t size_bytes);
// Elements of a rank's shard of a unit.
std::uint64_t shard_count(const Plan& plan, std::size_t unit);
// A rank's shard of a unit's weights.
std::uint64_t compute_bytes(const Plan& plan, std::size_t unit);
// The weights of a unit in their home: compute_bytes(), or all weights where the rank keeps them.
std::uint64_t weights_bytes(const Plan& plan, std::size_t unit);
// A rank's shard of a unit's gradients.
std::uint64_t gradient_bytes(const Plan& plan, std::size_t unit);
// The buffer of UnitPlacement::sums_on_device, which one rank has.
std::uint64_t sum_bytes(const Plan& plan, std::size_t unit);
// One part of a rank's optimizer states of a unit.
std::uint64_t part_bytes(const Plan& plan, std::size_t unit, std::size_t part);
// Memory that a unit's states take on their tier, or in the cache of states on NVMe. Excludes parts
// that are in files only, and the half of a split master that the weights are.
std::uint64_t state_memory_bytes(const Plan& plan, std::size_t unit);
// The cache of states on NVMe, of all units.
std::uint64_t cached_bytes(const Plan& plan);
// Memory of a unit's second states, or of a copy of its states: every part, the weights of a split
// master too.
std::uint64_t all_parts_bytes(const Plan& plan, std::size_t unit);
// The copies of states that checkpoints are written from, of all units.
std::uint64_t checkpoint_copies_bytes(const Plan& plan);

// A host tile of an update of `elements`, for states, gradients and weights that pass through it.
std::uint64_t update_tile_bytes(const Plan& plan, std::uint64_t elements);
// Host memory through which ranks exchange device memory; 0 where NCCL takes it as it is.
std::uint64_t staging_of_ranks_bytes(const Plan& plan);

// The device's budget also holds the tensors of a loop of the user's own, which nobody has counted:
// "device_bytes" gives a host device memory of its own.
bool shares_budget_with_loop(const Plan& plan);
// Some weights, gradients or inputs have their home in a file: bytes move between files and device.
bool moves_files(const Plan& plan);
// moves_files(), or some optimizer states have their home in a file.
bool uses_files(const Plan& plan);

// Memory of a GPU for blocks that stay mapped between their uses, where the budget has room for all
// of them.
std::uint64_t most_kept_bytes(const Plan& plan, std::uint64_t workspace_bytes);
// A page on either side where the device updates units: whether a result is non-finite.
TierBytes update_flags_bytes(const Plan& plan);

}  // namespace sluice::plan
