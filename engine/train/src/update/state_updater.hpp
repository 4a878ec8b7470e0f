#pragma once
// StateUpdater: owns the optimizer states (master, first and second moment) of every unit, at the
// tier the plan gave them, and steps them on a thread of its own, unit by unit in the order asked
// for: per tile read, Adam (which also writes the 16-bit weights), write back, several tiles in
// flight.
//
// The cache: parts of states on NVMe that memory has as well (and weights in host memory, which are
// half of a split master) are not read for an update, and written only where it is to be committed.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sluice/base/ticket.hpp"
#include "sluice/offload/buffer_ring.hpp"
#include "sluice/offload/swap_store.hpp"
#include "update/update_settings.hpp"
#include "update/updater_resources.hpp"

namespace sluice::train {

class TilePlacement;
class TileScheduler;

// Thread-safe for the caller's side: begin_x may be called by one thread while work runs.
class StateUpdater {
 public:
  // Takes the memory for states and tiles. Throws OutOfMemory.
  explicit StateUpdater(const UpdaterResources& resources);
  ~StateUpdater();  // waits for what was begun
  StateUpdater(const StateUpdater&) = delete;
  StateUpdater& operator=(const StateUpdater&) = delete;

  // An error is told by one of the two.
  struct Update {
    Ticket weights;  // ends when the weights are at their home, and the gradients were used
    Ticket states;   // ends when the states are at their home too
  };
  // Steps unit `unit` with the gradients at its home. `gradients`: that home, if it is a slot;
  // given back when they were used, also after a failure.
  Update begin_update(std::size_t unit, const UpdateSettings& settings,
                      offload::TileLease gradients = {});

  // Every unit will be updated once more, after what was begun: while there is nothing else to do,
  // states are read ahead as far as the plan has room. Nothing depends on whether it comes true.
  void expect_updates();

  // Writes to the store what updates that were not to be committed left in memory only. Before a
  // commit; does nothing where nothing was left.
  Ticket begin_write_back(std::size_t unit);

  // Sets the master weights of a unit from `fill(offset_count, values)`, called for consecutive
  // parts on the updater's thread, the moments to zero, and writes the weights.
  using Fill = std::function<void(std::uint64_t offset_count, std::span<float> values)>;
  Ticket begin_initialise(std::size_t unit, Fill fill);

  // Brings back a unit's states from what `source` has committed, verifying every checksum, and
  // writes the weights. When `source` is the updater's own store the states stay where they are.
  Ticket begin_restore(std::size_t unit, offload::SwapStore& source);

  // Copies a unit's states into the shards of `target` (a checkpoint).
  Ticket begin_copy_to(std::size_t unit, offload::SwapStore& target);

  UpdateCounters counters() const;
  // Empty, or why the tiles could not be registered with the I/O engine.
  const std::string& why_unregistered() const;

 private:
  const UpdaterResources resources_;
  std::unique_ptr<TilePlacement> placement_;
  std::unique_ptr<TileScheduler> scheduler_;
  std::vector<bool> only_in_memory_;  // by unit: what begin_write_back writes
};

}  // namespace sluice::train
