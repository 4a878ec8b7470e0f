#include "sluice/cpu_adam/copy.hpp"

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "sluice/base/error.hpp"

namespace sluice::cpu_adam {

namespace hn = hwy::HWY_NAMESPACE;

// For the instruction set that the program was built for: memory bounds the copy, not the width of
// its vectors.
void copy_past_caches(std::span<std::byte> to, std::span<const std::byte> from) {
  SLUICE_CHECK(to.size() == from.size(), "a copy of " + std::to_string(from.size()) +
                                             " bytes to a place of " + std::to_string(to.size()));
  if (to.empty()) return;
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t vector = hn::Lanes(d);
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(to.data()) % vector;
  std::size_t at = misaligned == 0 ? 0 : std::min(vector - misaligned, to.size());
  std::memcpy(to.data(), from.data(), at);
  const auto* const source = reinterpret_cast<const std::uint8_t*>(from.data());
  auto* const target = reinterpret_cast<std::uint8_t*>(to.data());
  for (; at + vector <= to.size(); at += vector)
    hn::Stream(hn::LoadU(d, source + at), d, target + at);
  std::memcpy(to.data() + at, from.data() + at, to.size() - at);
  hwy::FlushStream();  // before another thread reads the target
}

}  // namespace sluice::cpu_adam
