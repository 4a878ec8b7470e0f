#pragma once
// StateCopies: host memory for copies of units' states, from which a checkpoint is written while
// steps go on. It has room for the units that the plan names (UnitPlacement::checkpoint_copy), and
// copies nothing: StateUpdater::begin_copy_to does. Not installed.

#include <cstddef>
#include <vector>

#include "sluice/offload/memory_pool.hpp"
#include "sluice/plan/plan.hpp"
#include "update/optimizer_tile.hpp"

namespace sluice::train {

// Thread-safe: constant after construction. Whose turn it is to write and read the memory is the
// business of its user.
class StateCopies {
 public:
  // `pool` outlives the copies. Throws OutOfMemory.
  StateCopies(const plan::Plan& plan, offload::MemoryPool& pool);

  bool has_room(std::size_t unit) const { return !units_[unit].empty(); }
  // This rank's shard, by part of the states. The unit has room.
  StateSpans parts(std::size_t unit) const;

 private:
  std::vector<std::vector<offload::Buffer>> units_;  // by unit and part; empty without room
};

}  // namespace sluice::train
