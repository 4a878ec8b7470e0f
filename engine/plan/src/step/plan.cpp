#include "sluice/plan/plan.hpp"

#include <algorithm>

#include "sluice/base/bytes.hpp"

namespace sluice::plan {

using offload::Tier;

bool Plan::states_all_on_nvme() const {
  bool any = false;
  for (const UnitPlacement& unit : units) {
    if (unit.frozen) continue;
    if (unit.states != Tier::nvme) return false;
    any = true;
  }
  return any;
}

bool Plan::device_updates() const {
  return rings.update.device_tiles > 0 ||
         std::any_of(units.begin(), units.end(), device_has_all_of);
}

bool Plan::keeps_whole_weights(std::size_t unit) const {
  return config.world_size > 1 && config.zero.stage < config::kStageOfShardedWeights &&
         units[unit].weights == Tier::device;
}

std::uint64_t Plan::unit_input_bytes() const {
  const std::uint64_t tokens = checked_mul(static_cast<std::uint64_t>(config.micro_batch_size),
                                           static_cast<std::uint64_t>(model.n_positions));
  return checked_mul(checked_mul(tokens, static_cast<std::uint64_t>(model.n_embd)),
                     size_of(compute_dtype));
}

int Plan::further_threads() const {
  // Gathers, updates, and one that LibTorch's backward has of its own. The main thread is one of
  // the compute threads and one of the optimizer's.
  constexpr int kWorkers = 3;
  constexpr int kLanesOfGpu = 5;     // two of copies in each direction, one of works
  constexpr int kDirectReaders = 4;  // from a drive to a GPU, where there is direct storage
  const auto drives = static_cast<int>(swap_directories().size());
  const int of_copies = device.host_addressable ? 1 : kLanesOfGpu;
  const int of_direct = device.gpu && drives > 0 ? kDirectReaders : 0;
  const int of_ranks = config.world_size > 1 ? 3 : 0;  // arrivals, reductions, a look at the others
  const int of_staging = stages_ranks() || device.has_nccl ? 2 : 0;  // one for each communicator
  const int of_device = device_updates() ? 1 : 0;
  const int of_mover = rings.mover.tile_bytes > 0 ? 2 : 0;                         // fetch, store
  const int of_checkpoints = config.sluice.checkpoints.directory.empty() ? 0 : 2;  // and its I/O
  return kWorkers + of_copies + of_direct + of_ranks + of_staging + of_device + of_mover +
         of_checkpoints + (schedule.threads.compute - 1) + (schedule.threads.optimizer - 1) +
         drives;  // one for I/O each
}

}  // namespace sluice::plan
