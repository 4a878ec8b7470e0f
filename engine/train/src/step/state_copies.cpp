#include "step/state_copies.hpp"

#include <string>

#include "sluice/base/error.hpp"

namespace sluice::train {

StateCopies::StateCopies(const plan::Plan& plan, offload::MemoryPool& pool)
    : units_(plan.units.size()) {
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    if (!plan.units[u].checkpoint_copy) continue;
    const std::uint64_t count = zero::shard_count(plan.layouts[u], plan.config.world_size);
    for (std::size_t i = 0; i < plan.state_format.part_count(); ++i) {
      units_[u].push_back(pool.allocate(count * plan.state_format.part(i).element_bytes,
                                        "copy of the states of unit " + plan.layouts[u].name));
    }
  }
}

StateSpans StateCopies::parts(std::size_t unit) const {
  SLUICE_CHECK(has_room(unit), "the plan has no room for a copy of this unit's states");
  StateSpans spans;
  for (std::size_t i = 0; i < units_[unit].size(); ++i) spans[i] = units_[unit][i].bytes();
  return spans;
}

}  // namespace sluice::train
