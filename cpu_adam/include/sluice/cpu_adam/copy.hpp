#pragma once
// A copy whose target nobody reads soon. Thread-safe: a free function without state.

#include <cstddef>
#include <span>

namespace sluice::cpu_adam {

// Copies `from` to `to`, past the processor's caches: the target is written to memory without being
// read first, which an ordinary store does. Both have one size and do not overlap. Any alignment.
// Other threads see the bytes as after ordinary stores. Throws InvalidArgument on unequal sizes.
void copy_past_caches(std::span<std::byte> to, std::span<const std::byte> from);

}  // namespace sluice::cpu_adam
