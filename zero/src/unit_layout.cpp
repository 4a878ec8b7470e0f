#include "sluice/zero/unit_layout.hpp"

#include <algorithm>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"

namespace sluice::zero {

void add_param(UnitLayout& layout, std::string name, std::vector<std::int64_t> shape) {
  std::uint64_t count = 1;
  for (const std::int64_t dimension : shape) {
    SLUICE_CHECK(dimension > 0,
                 "parameter " + name + " has a dimension of " + std::to_string(dimension));
    count = checked_mul(count, static_cast<std::uint64_t>(dimension));
  }
  const std::uint64_t offset = align_up(layout.flat_count, kParamAlignment);
  layout.params.push_back(ParamLayout{std::move(name), std::move(shape), count, offset});
  layout.param_count = checked_add(layout.param_count, count);
  layout.flat_count = checked_add(offset, count);
}

void finish_layout(UnitLayout& layout, int world_size) {
  SLUICE_CHECK(world_size >= 1, "world size of " + std::to_string(world_size));
  layout.flat_count = align_up(
      layout.flat_count, checked_mul(kShardAlignment, static_cast<std::uint64_t>(world_size)));
}

ShardRange part_in(const ParamLayout& param, std::uint64_t begin, std::uint64_t count) {
  const std::uint64_t from = std::max(begin, param.offset_count);
  const std::uint64_t to = std::min(begin + count, param.offset_count + param.count);
  return {from, to > from ? to - from : 0};
}

ShardRange shard_range(const UnitLayout& layout, int rank, int world_size) {
  SLUICE_CHECK(world_size >= 1 && rank >= 0 && rank < world_size,
               "rank " + std::to_string(rank) + " of " + std::to_string(world_size));
  const auto ranks = static_cast<std::uint64_t>(world_size);
  SLUICE_CHECK(layout.flat_count % (ranks * kShardAlignment) == 0,
               "unit " + layout.name + " was laid out for another number of ranks than " +
                   std::to_string(world_size));
  const std::uint64_t count = layout.flat_count / ranks;
  return ShardRange{static_cast<std::uint64_t>(rank) * count, count};
}

std::uint64_t shard_count(const UnitLayout& layout, int world_size) {
  return shard_range(layout, 0, world_size).count;
}

}  // namespace sluice::zero
