// The parts of striped stores, before a run takes them up.

#include <optional>
#include <string>

#include "sluice/offload/swap_directory.hpp"
#include "sluice/offload/swap_state.hpp"
#include "swap/manifest.hpp"
#include "swap/stripe.hpp"

namespace sluice::offload {

SwapPlace rank_place(const SwapPlace& swap, int rank, int world_size) {
  if (world_size == 1) return swap;
  SwapPlace place = swap;
  place.directory = rank_folder(swap.directory, rank, world_size);
  for (std::string& further : place.further) further = rank_folder(further, rank, world_size);
  return place;
}

void check_parts(const SwapPlace& place, std::optional<std::uint64_t> digest, PartsUse use) {
  const Manifest manifest = require_manifest(place.directory, digest);
  if (use == PartsUse::continued) {
    stripe_of_committed(place, manifest);
  } else {
    stripe_to_read(place, manifest);
  }
}

void follow_moved_drives(const SwapPlace& swap, int world_size) {
  if (world_size != 1) follow_moved_parts(swap);
  for (const RankFolder& folder : list_rank_folders(swap.directory)) {
    if (folder.world_size != world_size)
      follow_moved_parts(rank_place(swap, folder.rank, folder.world_size));
  }
}

}  // namespace sluice::offload
