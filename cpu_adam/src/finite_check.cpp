#include "finite_check.hpp"

#include <cmath>

namespace sluice::cpu_adam {

namespace {

bool finite_as_weight(float value, WeightType type) {
  if (type == WeightType::bf16) return std::isfinite(to_fp32(to_bf16(value)));
  if (type == WeightType::fp16) return std::isfinite(to_fp32(to_fp16(value)));
  return std::isfinite(value);
}

bool finite_master(const TileArguments& tile, MasterLayout layout, std::size_t i) {
  if (layout == MasterLayout::fp32)
    return finite_as_weight(static_cast<const float*>(tile.master)[i], tile.weight_type);
  const Bf16 weight = static_cast<const Bf16*>(tile.master)[i];
  return std::isfinite(to_fp32(weight)) && std::isfinite(join({weight, tile.low[i]}));
}

bool finite_moment(const void* moment, std::size_t element_bytes, std::size_t i) {
  if (element_bytes == sizeof(Bf16))
    return std::isfinite(to_fp32(static_cast<const Bf16*>(moment)[i]));
  return std::isfinite(static_cast<const float*>(moment)[i]);
}

}  // namespace

std::size_t first_non_finite(const TileArguments& tile, const StateLayout& layout) {
  for (std::size_t i = 0; i < tile.count; ++i) {
    if (!finite_master(tile, layout.master, i)) return i;
    for (std::size_t k = 0; k < layout.moments; ++k) {
      if (!finite_moment(tile.moments[k], layout.moment_bytes, i)) return i;
    }
  }
  return tile.count;
}

}  // namespace sluice::cpu_adam
