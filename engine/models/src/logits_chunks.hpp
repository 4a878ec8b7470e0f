#pragma once
// Sizes of the chunks of tensors that never exist as a whole: logits, and the product of a backward
// that is added to fp32 sums. Shared by the computation and by the count of its bytes. No LibTorch.
// Thread-safe: constants and a free function without state.

#include <algorithm>
#include <cstdint>

namespace sluice::models {

// Logits that exist at a time (16 MiB in bf16), and logits converted to fp32 at a time (4 MiB).
inline constexpr std::int64_t kLogitsChunkCount = 1 << 23;
inline constexpr std::int64_t kLossChunkCount = 1 << 20;
// Both sizes on a GPU, which needs more work at a time: 128 MiB in bf16, 128 MiB in fp32.
inline constexpr std::int64_t kGpuLogitsChunkCount = 1 << 26;
inline constexpr std::int64_t kGpuLossChunkCount = 1 << 25;
// Elements of a 16-bit weight gradient that wait to be added to fp32 sums: 2 MiB, on a GPU 128 MiB.
inline constexpr std::int64_t kSumChunkCount = 1 << 20;
inline constexpr std::int64_t kGpuSumChunkCount = 1 << 26;

// Rows of a weight gradient of `columns` columns that are computed and added at a time.
inline std::int64_t sum_chunk_rows(std::int64_t rows, std::int64_t columns, bool on_gpu) {
  const std::int64_t count = on_gpu ? kGpuSumChunkCount : kSumChunkCount;
  return std::clamp<std::int64_t>(count / columns, 1, rows);
}

}  // namespace sluice::models
