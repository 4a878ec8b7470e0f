#pragma once
// Sizes of the chunks in which the head computes logits, which never exist as a whole. Shared by
// the computation and by the count of its bytes. No LibTorch. Thread-safe: constants.

#include <cstdint>

namespace sluice::models {

// Logits that exist at a time (16 MiB in bf16), and logits converted to fp32 at a time (4 MiB).
inline constexpr std::int64_t kLogitsChunkCount = 1 << 23;
inline constexpr std::int64_t kLossChunkCount = 1 << 20;
// Both sizes on a GPU, which needs more work at a time: 128 MiB in bf16, 128 MiB in fp32.
inline constexpr std::int64_t kGpuLogitsChunkCount = 1 << 26;
inline constexpr std::int64_t kGpuLossChunkCount = 1 << 25;

}  // namespace sluice::models
