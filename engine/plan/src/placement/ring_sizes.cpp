#include "placement/ring_sizes.hpp"

#include <algorithm>
#include <bit>

#include "sluice/base/bytes.hpp"
#include "sluice/base/text.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "sluice/plan/tile_layout.hpp"

namespace sluice::plan {

namespace {

// Tiles of the optimizer step: the usual ones are large enough for a drive's whole blocks, and so
// small that several fit a small budget.
constexpr std::uint64_t kLeastTileElements = kUsualTileElements / 4;
constexpr std::uint64_t kMostTileElements = 16 * kUsualTileElements;
// Threads take pieces of a tile as they come free. With some pieces for each thread, the work
// between tiles is small beside them.
constexpr std::uint64_t kPiecesPerThread = 4;
// With more threads two tiles are computed at a time, so that no thread waits at the end of one.
constexpr int kThreadsOfOneTile = 4;
constexpr std::uint64_t kLargestMoverTileBytes = 4 * kMiB;
constexpr int kTilesInFlight = 3;  // one read, one computed, one written
// A tile whose weights go to a GPU waits for their copy, and for a thread that wakes up after it.
// So short waits leave no core without a tile, there are more of them: two are computed, the others
// are on their way.
constexpr int kTilesBesideCopies = 8;
// DeepSpeed has one buffer each for master, moments and gradient. They are one tile.
int buffers_per_tile(const Plan& plan) {
  return 2 + static_cast<int>(cpu_adam::moment_count(plan.state_format.rule));
}

std::uint64_t largest_unit(const Plan& plan) {
  std::uint64_t largest = 1;
  for (const zero::UnitLayout& layout : plan.layouts)
    largest = std::max(largest, layout.flat_count);
  return largest;
}

// buffer_count and buffer_size take effect with the device "nvme" only.
bool swaps(const config::OffloadConfig& offload) {
  return offload.device == config::OffloadConfig::Device::nvme;
}
std::optional<std::int64_t> buffer_count(const config::OffloadConfig& offload) {
  return swaps(offload) ? offload.buffer_count : std::nullopt;
}

// The largest tile that is of use to the optimizer's threads.
std::uint64_t wanted_tile_elements(const Plan& plan) {
  const auto threads = static_cast<std::uint64_t>(plan.schedule.threads.optimizer);
  // Cores and GPU share a unit by tiles, and end together where these are small.
  const bool shared = plan.config.sluice.updates.on_gpu && !plan.device.host_addressable;
  return std::clamp(std::bit_ceil(threads * kPiecesPerThread * kPieceElements), kUsualTileElements,
                    shared ? 2 * kUsualTileElements : kMostTileElements);
}

// Updates of states in host memory send weights to a GPU.
bool sends_to_gpu(const Plan& plan) {
  return !plan.device.host_addressable && plan.placement == Placement::configured &&
         plan.config.zero.offload_param.device == config::OffloadConfig::Device::none &&
         plan.config.zero.offload_optimizer.device == config::OffloadConfig::Device::cpu;
}

// Tiles of `elements` that keep the queues of all drives full in both directions while the threads
// compute.
int wanted_tiles(const Plan& plan, std::uint64_t elements) {
  if (sends_to_gpu(plan)) return kTilesBesideCopies;
  if (elements < kUsualTileElements) return kTilesInFlight;
  const config::AioConfig& aio = plan.config.aio;
  const std::uint64_t drives = plan.config.zero.offload_optimizer.directories.size();
  const std::uint64_t queued_bytes =
      checked_mul(drives, static_cast<std::uint64_t>(aio.queue_depth) * aio.block_size);
  const std::uint64_t tile_bytes = elements * plan.state_format.element_bytes();
  const auto in_flight = std::max<std::uint64_t>(1, ceil_div(queued_bytes, tile_bytes));
  const int computed = plan.schedule.threads.optimizer > kThreadsOfOneTile ? 2 : 1;
  return static_cast<int>(std::min<std::uint64_t>(2 * in_flight, 64)) + computed;
}

// Between micro-batches, a user's loop keeps the sums of all units.
bool shares_gradient_slots(const Plan& plan) {
  return plan.updates_in_backward() &&
         !(plan.own_loop() && plan.config.gradient_accumulation_steps > 1);
}

std::string raised(const char* key, std::uint64_t asked, const std::string& used) {
  return std::string(key) + ": " + std::to_string(asked) + " asked for, " + used;
}

}  // namespace

std::vector<RingSizes> ring_size_ladder(const Plan& plan) {
  const std::uint64_t granularity = plan.state_format.granularity_count();
  const std::uint64_t largest = largest_unit(plan);  // the last tile of a unit may have any size
  const config::ZeroConfig& zero = plan.config.zero;
  const std::uint64_t sub_group =
      std::max(granularity, align_down(zero.sub_group_size, granularity));
  std::vector<RingSizes> ladder;
  for (std::uint64_t elements = wanted_tile_elements(plan); elements >= kLeastTileElements;
       elements /= 2) {
    RingSizes rings;
    rings.update_tile_elements = std::min({std::max(elements, granularity), sub_group, largest});
    const auto buffers = buffer_count(zero.offload_optimizer);
    rings.update_tiles =
        buffers ? std::max(kTilesInFlight, static_cast<int>(*buffers) / buffers_per_tile(plan))
                : wanted_tiles(plan, elements);
    rings.mover_tile_bytes =
        kLargestMoverTileBytes / (kUsualTileElements / std::min(elements, kUsualTileElements));
    rings.mover_tiles =
        std::max<int>(kTilesInFlight,
                      static_cast<int>(buffer_count(zero.offload_param).value_or(kTilesInFlight)));
    const std::uint64_t largest_bytes = checked_mul(largest, size_of(plan.compute_dtype));
    if (swaps(zero.offload_param) && zero.offload_param.buffer_size) {
      rings.mover_tile_bytes =
          align_up(checked_mul(*zero.offload_param.buffer_size, size_of(plan.compute_dtype)),
                   offload::kPageBytes);
    }
    rings.mover_tile_bytes =
        std::min(rings.mover_tile_bytes, align_up(largest_bytes, offload::kPageBytes));
    ladder.push_back(rings);
  }
  // The least tiles are for budgets that hold no others.
  if (sends_to_gpu(plan)) {
    ladder.push_back(ladder.back());
    ladder.back().update_tiles = kTilesInFlight;
  }
  return ladder;
}

std::uint64_t bytes_for_small_tiles(const Plan& plan) {
  constexpr std::uint64_t kPartOfModel = 8;
  return plan.model_size.state_bytes / kPartOfModel;
}

std::vector<RingSizes> ring_sizes_to_try(const Plan& plan) {
  const auto suits = [&](const RingSizes& rings) {
    const std::uint64_t both =
        static_cast<std::uint64_t>(rings.update_tiles) * rings.update_tile_elements * 16 +
        2 * static_cast<std::uint64_t>(rings.mover_tiles) * rings.mover_tile_bytes;
    const bool suits_model =
        rings.update_tile_elements > kUsualTileElements || both <= bytes_for_small_tiles(plan);
    return suits_model && both <= *plan.budget.host_bytes / 2;
  };
  const std::vector<RingSizes> ladder = ring_size_ladder(plan);
  const auto first = std::ranges::find_if(ladder, suits);
  std::vector<RingSizes> sizes = {first == ladder.end() ? ladder.back() : *first, ladder.back()};
  if (!shares_gradient_slots(plan)) return sizes;
  for (RingSizes& rings : sizes) rings.gradient_slots = kLeastGradientSlots;
  sizes.push_back(ladder.back());
  return sizes;
}

std::vector<std::string> raised_limits(const Plan& plan) {
  const config::ZeroConfig& zero = plan.config.zero;
  const char* const why_three = ": one is read, one used and one written at the same time";
  std::vector<std::string> lines;
  // A unit smaller than the limit is one tile, which is within the limit.
  if (zero.sub_group_size < std::min(plan.rings.update.tile_elements, largest_unit(plan))) {
    lines.push_back(raised("sub_group_size", zero.sub_group_size,
                           std::to_string(plan.rings.update.tile_elements) +
                               " elements are updated at a time: no less has a checksum of its "
                               "own"));
  }
  const auto update_buffers = buffer_count(zero.offload_optimizer);
  if (plan.rings.update.tile_bytes > 0 && update_buffers &&
      *update_buffers < std::int64_t{buffers_per_tile(plan)} * kTilesInFlight) {
    lines.push_back(raised("offload_optimizer.buffer_count",
                           static_cast<std::uint64_t>(*update_buffers),
                           std::to_string(buffers_per_tile(plan) * plan.rings.update.tiles) +
                               " used (" + std::to_string(plan.rings.update.tiles) + " tiles of " +
                               std::to_string(buffers_per_tile(plan)) + ")" + why_three));
  }
  const auto mover_buffers = buffer_count(zero.offload_param);
  if (plan.rings.mover.tile_bytes > 0 && mover_buffers && *mover_buffers < kTilesInFlight) {
    lines.push_back(raised("offload_param.buffer_count", static_cast<std::uint64_t>(*mover_buffers),
                           std::to_string(plan.rings.mover.tiles) + " used" + why_three));
  }
  return lines;
}

std::string why_these_tiles(const Plan& plan) {
  const UpdateRing& ring = plan.rings.update;
  const config::OffloadConfig& offload = plan.config.zero.offload_optimizer;
  const bool usual = ring.tiles == kTilesInFlight && ring.tile_elements <= kUsualTileElements;
  if (ring.tile_bytes == 0 || usual || buffer_count(offload)) return "";
  const std::size_t drives = offload.directories.size();
  const config::AioConfig& aio = plan.config.aio;
  std::string line = "update tiles: " + std::to_string(ring.tiles) + " of " +
                     format_bytes(ring.tile_bytes) + ", for " +
                     std::to_string(plan.schedule.threads.optimizer) + " threads";
  if (drives > 0) {
    line += " and " + counted(drives, "drive") + " with " + std::to_string(aio.queue_depth) +
            " requests of " + format_bytes(aio.block_size) +
            (drives == 1 ? " in flight" : " in flight each");
  }
  if (sends_to_gpu(plan)) line += ", some of them while weights are copied to the GPU";
  return line;
}

}  // namespace sluice::plan
