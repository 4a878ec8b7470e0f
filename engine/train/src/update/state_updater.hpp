#pragma once
// StateUpdater: owns the optimizer states (master and moments) of every unit, on the tier that the
// plan chose, and steps them on a thread of its own. Each tile is read, stepped by the optimizer,
// which also writes the 16-bit weights, and written back. Several tiles are in flight; units
// that wait are taken in forward order. It neither computes gradients nor decides when a step is
// committed.
//
// The cache: some parts of states on NVMe are in host memory as well. Weights in host memory are
// such a part where they are half of a split master. An update does not read cached parts, and
// writes cached parts to the store only in a step that is committed.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sluice/base/mutex.hpp"
#include "sluice/base/ticket.hpp"
#include "sluice/models/state_reader.hpp"
#include "sluice/offload/buffer_ring.hpp"
#include "sluice/offload/swap_store.hpp"
#include "update/optimizer_tile.hpp"
#include "update/unit_marks.hpp"
#include "update/update_settings.hpp"
#include "update/updater_resources.hpp"

namespace sluice::train {

class Speculation;
class TilePlacement;
class TileScheduler;
struct TileWork;

// One thread at a time calls the begin_x functions and expect_updates(), also while work runs;
// counters() is thread-safe.
class StateUpdater {
 public:
  // Allocates states and tiles. Throws OutOfMemory.
  explicit StateUpdater(const UpdaterResources& resources);
  ~StateUpdater();  // blocks until the work that was begun has ended
  StateUpdater(const StateUpdater&) = delete;
  StateUpdater& operator=(const StateUpdater&) = delete;

  // An error goes to exactly one of the two tickets.
  struct Update {
    Ticket weights;  // ends when the weights are at their home and the gradients have been used
    Ticket states;   // ends when the states are at their home too
  };
  // Steps a unit with the gradients at its home. `gradients`: the lease of that home if it is a
  // slot; the updater returns the slot when the gradients have been used, also after a failure.
  Update begin_update(std::size_t unit, const UpdateSettings& settings,
                      offload::TileLease gradients = {});

  // Whether the plan gives the unit second states.
  bool can_speculate(std::size_t unit) const { return resources_.plan->units[unit].second_states; }
  // Begins an update before the norm of all gradients is known: from the gradients at the unit's
  // home, into its second states. States and weights stay as they are, and the gradients are still
  // needed. Exactly one of the next two calls follows, unless begin_visit() writes the states
  // before.
  void begin_speculative_update(std::size_t unit, const UpdateSettings& settings);
  // Whether one of these calls is still to come.
  bool speculates(std::size_t unit) const { return speculative_[unit].update != nullptr; }
  // Where the update began with settings that give the results of `settings`: makes the second
  // states the unit's states and writes the weights. Errors are those of begin_update(). Otherwise
  // drops it, and returns nothing.
  std::optional<Update> keep_speculative_update(std::size_t unit, const UpdateSettings& settings);
  // Forgets the results. The ticket, which is the updater's, ends when nothing reads the gradients
  // any more; a begin_update() that follows needs no wait.
  const Ticket& drop_speculative_update(std::size_t unit);

  // Throws the error of an update or a writing visit that failed, again and again: the unit's
  // states are then no state of any step, until begin_restore() replaces them. Call it before
  // weights are used, and after the updates have ended, before a commit. Thread-safe, as
  // has_failed().
  void check_updates() const;
  bool has_failed() const;

  // Announces one more update of every unit, after the updates already begun. While idle, the
  // updater prefetches the earliest units' states into the tiles that the plan has for that. The
  // announcement is a hint: the updates may fail to come.
  void expect_updates();

  // Writes the cached parts of a unit to the store, if its last update left their new bytes in
  // memory only; does nothing otherwise. Call it before a commit. After an error the next call
  // writes them again.
  Ticket begin_write_back(std::size_t unit);

  // Sets the master weights of a unit from `fill` and the moments to their first values, and writes
  // the weights.
  // `fill(offset_count, values)` is called once for every element, in parts, on several threads at
  // once; `offset_count` counts elements.
  using Fill = std::function<void(std::uint64_t offset_count, std::span<float> values)>;
  Ticket begin_initialise(std::size_t unit, Fill fill);

  // Elements of a unit's states, as fp32.
  struct Values {
    std::uint64_t offset_count = 0;
    std::span<float> master;
    std::vector<std::span<float>> moments;
  };
  // Shows these elements of a unit's shard once, and perhaps others, in parts, on several threads
  // at once. Without elements it shows nothing. A unit whose states and weights are at home in
  // memory takes these elements alone. Elsewhere a read takes the tiles with these elements, and a
  // write all tiles. With Access::write, changes to the values are kept (bf16 moments rounded to
  // nearest), the weights follow the master, and a speculative update of the unit is dropped. All
  // ranks write at one time, also those without elements: their whole weights are gathered anew.
  enum class Access { read, write };
  using Visit = std::function<void(const Values&)>;
  Ticket begin_visit(std::size_t unit, Access access, const zero::ShardRange& elements,
                     Visit visit);

  // Takes up a unit's states from the updater's own store, whose committed bytes they are: verifies
  // every checksum, and writes the weights. The states stay in the store.
  Ticket begin_restore(std::size_t unit);
  // Restores this rank's range of a unit's states from `saved`, which any number of ranks wrote,
  // verifies every checksum that covers it, and writes the weights. Padding that is not saved is
  // that of a new run.
  Ticket begin_restore(std::size_t unit, const models::StateReader& saved);

  // Copies a unit's states into the shards of `target` (a checkpoint). Threads of the optimizer
  // wait for the writes. Updates that are begun later wait for the copy, here and below.
  Ticket begin_copy_to(std::size_t unit, offload::SwapStore& target);
  // Copies a unit's states into host memory: the parts of this rank's shard.
  Ticket begin_copy_to(std::size_t unit, const StateSpans& target);

  UpdateCounters counters() const;
  // Where the states are, for measurements.
  const TilePlacement& placement() const { return *placement_; }
  // Empty, or why the tiles are not registered with the I/O engine.
  const std::string& why_unregistered() const;

 private:
  struct Speculative {
    std::unique_ptr<Speculation> update;  // null: none is to be kept or dropped
    Ticket work;                          // of the last one
    UpdateSettings settings;              // of the last one
  };
  Update begin_last_of_update(std::size_t unit, TileWork work, offload::TileLease gradients);
  TileWork restoring(std::size_t unit);

  const UpdaterResources resources_;
  mutable Mutex mutex_;
  UnitMarks marks_;  // works of the scheduler set them until its end
  std::unique_ptr<TilePlacement> placement_;
  std::unique_ptr<TileScheduler> scheduler_;
  SpeculativeCounters speculated_ SLUICE_GUARDED_BY(mutex_);
  std::uint64_t elements_ SLUICE_GUARDED_BY(mutex_) = 0;  // of the updates that were begun
  std::vector<Speculative> speculative_;                  // by unit
};

}  // namespace sluice::train
