#include "measure/load_plan.hpp"

#include <algorithm>
#include <string>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"

namespace sluice::nvme {

namespace {

constexpr std::uint64_t kRangesInFlight = 16;
constexpr std::uint64_t kFewestTiles = 4;  // reading, touching, writing, spare
// The load begins more blocks than the queue holds; otherwise the queue would run empty while an
// ended job is processed. It begins only a few more, so that the processor's caches hold the
// memory: drives that copy, as in virtual machines, are slower on uncached memory. Small blocks
// take at least a few MiB in all.
constexpr std::uint64_t kFewestSpareBlocks = 4;
constexpr std::uint64_t kWantedBytes = 4 * kMiB;
constexpr std::uint64_t kMostBytes = 512 * kMiB;
// Random blocks begin in lists of at most a quarter of the queue, bounded so that the processor's
// caches hold the memory.
constexpr std::uint64_t kRandomJobBytes = 64 * kKiB;

std::uint64_t blocks_in_flight(const IoEngineOptions& engine, bool random) {
  const std::uint64_t depth = engine.depth;
  const std::uint64_t wanted = random ? 3 * depth
                                      : std::max(depth + std::max(depth / 8, kFewestSpareBlocks),
                                                 kWantedBytes / engine.block_bytes);
  return std::min(wanted, std::max(depth + 1, kMostBytes / engine.block_bytes));
}

}  // namespace

LoadPlan::LoadPlan(const LoadOptions& options, const IoEngineOptions& engine)
    : pattern_(options.pattern),
      access_(options.access),
      size_bytes_(options.size_bytes),
      block_bytes_(engine.block_bytes),
      random_(options.seed) {
  SLUICE_CHECK(size_bytes_ >= block_bytes_ && size_bytes_ % kPageBytes == 0,
               "a size of " + format_bytes(size_bytes_) +
                   " to measure on: expected at least one block of " + format_bytes(block_bytes_) +
                   " and a multiple of 4096 bytes");
  const std::uint64_t blocks = blocks_in_flight(engine, access_ == LoadAccess::random);
  if (pattern_ == LoadPattern::swap) {
    plan_tiles(options.tensor_bytes, blocks);
  } else {
    plan_ranges(engine.depth, blocks);
  }
}

void LoadPlan::plan_tiles(const std::vector<std::uint64_t>& tensor_bytes, std::uint64_t blocks) {
  SLUICE_CHECK(access_ == LoadAccess::sequential, "the pattern swap is sequential");
  region_bytes_ = align_down(size_bytes_ / kSwapStates, kPageBytes);
  const std::uint64_t range_blocks = std::max<std::uint64_t>(1, blocks / kRangesInFlight);
  range_bytes_ = std::min(range_blocks * block_bytes_, region_bytes_);
  SLUICE_CHECK(range_bytes_ > 0, "too small a size for three states: " + format_bytes(size_bytes_));
  jobs_ = static_cast<std::size_t>(
      std::max(kFewestTiles, ceil_div(blocks, kSwapStates * range_blocks)));
  job_bytes_ = kSwapStates * range_bytes_;
  std::uint64_t at = 0;
  for (const std::uint64_t bytes : tensor_bytes) {
    const std::uint64_t padded = align_up(std::max<std::uint64_t>(bytes, 1), kPageBytes);
    tensors_.push_back({at, padded});
    at = checked_add(at, padded);
  }
  if (tensors_.empty()) tensors_.push_back({0, at = region_bytes_});
  SLUICE_CHECK(at <= region_bytes_, "three states of the tensors take " + format_bytes(3 * at) +
                                        ", more than the size of " + format_bytes(size_bytes_));
}

void LoadPlan::plan_ranges(unsigned depth, std::uint64_t blocks) {
  const bool random = access_ == LoadAccess::random;
  const std::uint64_t blocks_per_range =
      random ? 1
             : std::clamp<std::uint64_t>(blocks / kRangesInFlight, 1, size_bytes_ / block_bytes_);
  ranges_per_job_ =
      random ? std::clamp<std::uint64_t>(kRandomJobBytes / block_bytes_, 1, std::max(1U, depth / 4))
             : 1;
  range_bytes_ = blocks_per_range * block_bytes_;
  job_bytes_ = ranges_per_job_ * range_bytes_;
  jobs_ = static_cast<std::size_t>(ceil_div(blocks, ranges_per_job_ * blocks_per_range));
  if (pattern_ != LoadPattern::read) written_from_bytes_ = checked_mul(jobs_, job_bytes_);
  // The read and write streams of mixed stay half the file apart.
  write_cursor_ = pattern_ == LoadPattern::mixed ? align_down(size_bytes_ / 2, kPageBytes) : 0;
}

LoadStep LoadPlan::next() {
  if (pattern_ == LoadPattern::swap) return next_tile();
  const bool writes =
      pattern_ == LoadPattern::write || (pattern_ == LoadPattern::mixed && write_next_);
  write_next_ = !write_next_;
  LoadStep step{writes ? IoOp::write : IoOp::read, {}};
  for (std::uint64_t i = 0; i < ranges_per_job_; ++i) {
    step.ranges.push_back(access_ == LoadAccess::random
                              ? next_random()
                              : next_sequential(writes ? write_cursor_ : read_cursor_));
  }
  return step;
}

LoadRange LoadPlan::next_sequential(std::uint64_t& cursor) const {
  if (cursor >= size_bytes_) cursor = 0;
  const LoadRange range{cursor, std::min(range_bytes_, size_bytes_ - cursor)};
  cursor += range.size_bytes;
  return range;
}

LoadRange LoadPlan::next_random() {
  std::uniform_int_distribution<std::uint64_t> blocks(0, size_bytes_ / block_bytes_ - 1);
  return {blocks(random_) * block_bytes_, block_bytes_};
}

// A tile of tensors, or of the next part of a large tensor, until the tile is full; with three
// states of each range.
LoadStep LoadPlan::next_tile() {
  LoadStep step{IoOp::read, {}};
  std::uint64_t room = range_bytes_;
  while (room > 0) {
    const LoadRange& tensor = tensors_[tensor_];
    const std::uint64_t bytes = std::min(room, tensor.size_bytes - in_tensor_);
    for (std::uint64_t state = 0; state < kSwapStates; ++state) {
      step.ranges.push_back({state * region_bytes_ + tensor.offset_bytes + in_tensor_, bytes});
    }
    room -= bytes;
    in_tensor_ += bytes;
    if (in_tensor_ < tensor.size_bytes) break;
    in_tensor_ = 0;
    tensor_ = (tensor_ + 1) % tensors_.size();
    if (tensor_ == 0) break;  // a new step begins with a new tile
  }
  return step;
}

}  // namespace sluice::nvme
