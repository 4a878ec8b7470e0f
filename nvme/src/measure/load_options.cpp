#include "sluice/nvme/load_options.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <string>

#include "backend/index_of.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"

namespace sluice::nvme {

namespace {

constexpr std::array<std::string_view, 4> kPatternNames{"read", "write", "mixed", "swap"};
constexpr std::array<std::string_view, 2> kAccessNames{"sequential", "random"};

}  // namespace

LoadPattern parse_load_pattern(std::string_view name) {
  return static_cast<LoadPattern>(index_of("pattern", name, kPatternNames));
}
LoadAccess parse_load_access(std::string_view name) {
  return static_cast<LoadAccess>(index_of("access", name, kAccessNames));
}
std::string_view name_of(LoadPattern pattern) {
  return kPatternNames.at(static_cast<std::size_t>(pattern));
}
std::string_view name_of(LoadAccess access) {
  return kAccessNames.at(static_cast<std::size_t>(access));
}

// The sizes are largest^(u^a) for u from 0 to 1 in equal steps. Every exponent a includes the
// smallest and the largest size; a larger a makes more sizes small. Bisection finds a.
std::vector<std::uint64_t> swap_tensor_sizes(std::size_t count, std::uint64_t size_bytes) {
  const std::uint64_t region_bytes = align_down(size_bytes / kSwapStates, kPageBytes);
  const auto largest =
      static_cast<double>(std::clamp<std::uint64_t>(region_bytes / 8, 1, 64 * kMiB));
  const std::string refusal =
      "three states of " + std::to_string(count) + " tensors of 1 byte to 64 MiB cannot fill " +
      format_bytes(size_bytes) + "; change the number of tensors or the size";
  SLUICE_CHECK(count > 0 && count <= region_bytes / kPageBytes, refusal);
  std::vector<std::uint64_t> sizes(count);
  const auto pages_of = [&](double exponent) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double u = count == 1 ? 1 : static_cast<double>(i) / static_cast<double>(count - 1);
      sizes[i] = static_cast<std::uint64_t>(std::pow(largest, std::pow(u, exponent)));
      sum += align_up(sizes[i], kPageBytes);
    }
    return sum;
  };
  double most = 1e-3;  // nearly all sizes are large
  double least = 1e3;  // nearly all sizes are 1 byte
  SLUICE_CHECK(pages_of(least) <= region_bytes && pages_of(most) >= region_bytes, refusal);
  for (int i = 0; i < 60; ++i) {
    const double middle = std::sqrt(most * least);
    (pages_of(middle) <= region_bytes ? least : most) = middle;
  }
  pages_of(least);
  std::mt19937_64 random(1);
  std::shuffle(sizes.begin(), sizes.end(), random);
  return sizes;
}

}  // namespace sluice::nvme
