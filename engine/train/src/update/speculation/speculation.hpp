#pragma once
// Speculation: an update of one unit that began before the norm of all gradients was known, as if
// nothing were clipped. It reads the unit's states and writes new ones into the unit's second
// states; states, weights and gradients stay as they are. When the norm is known, the results are
// kept, or forgotten. It decides neither. Not installed.

#include <cstdint>
#include <memory>

#include "update/tile_placement.hpp"
#include "update/tile_work.hpp"
#include "update/update_settings.hpp"
#include "update/updater_resources.hpp"

namespace sluice::train {

// update_work() is called once; then keep_work() or cancel(), by the same thread. The works run on
// the updater's threads, also after the object is gone.
class Speculation {
 public:
  // `resources` and `placement` outlive the works. The plan gives `unit` second states.
  Speculation(const UpdaterResources& resources, TilePlacement& placement, std::size_t unit);

  // Computes the second states. Does not fail: an error waits for keep_work(), which throws it.
  TileWork update_work(const UpdateSettings& settings);
  // Makes the second states the unit's states, and writes the weights. Runs after update_work().
  // `after`: copies of device memory begin after this point.
  TileWork keep_work(const offload::ComputePoint& after);
  // Pieces of update_work() that have not begun do nothing. Returns the seconds that threads have
  // computed for it.
  double cancel();

 private:
  struct Progress;

  const UpdaterResources& resources_;
  TilePlacement& placement_;
  const std::size_t unit_;
  const std::shared_ptr<Progress> progress_;  // shared with the works
};

}  // namespace sluice::train
