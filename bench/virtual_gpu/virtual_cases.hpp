#pragma once
// The cases of virtual_step_bench. Thread-safe: values.

#include <cstdint>
#include <vector>

namespace sluice::bench {

struct Case {
  const char* name;
  std::int64_t layers;
  std::int64_t vocabulary;     // at a width of 64
  std::int64_t micro_batches;  // of a step
  std::int64_t per_pass;
  double tokens;                  // of a micro-batch of the large model
  double clipping;                // 0: none; otherwise it clips nothing
  std::uint64_t speculative = 0;  // percent of the states that have second states
  std::int64_t last_pass = 0;     // micro-batches, if not per_pass
  bool gpu_updates = false;
  double ratio = 1;  // of the states in host memory; the GPU updates the others in no time
};

inline constexpr double kClipsNothing = 1e9;
// Rows 1 to 3 of a GPU's table (bench/gpu_rows.py). A micro-batch of the 1.3 B model is 8 sequences
// of 1,024 tokens, and of the 6.7 B model 2 of 2,048. The half is what 126 GiB hold beside 6.7 B.
inline const std::vector<Case> kCases = {
    {"1.3B_128K", 24, 1570, 16, 4, 8192, 0},
    {"1.3B_128K_clipping", 24, 1570, 16, 4, 8192, kClipsNothing},
    {"1.3B_128K_clipping_speculative", 24, 1570, 16, 4, 8192, kClipsNothing, 100},
    {"1.3B_32K", 24, 1570, 4, 4, 8192, 0},
    {"1.3B_32K_clipping", 24, 1570, 4, 4, 8192, kClipsNothing},
    {"1.3B_32K_clipping_speculative", 24, 1570, 4, 4, 8192, kClipsNothing, 100},
    {"1.3B_8K", 24, 1570, 1, 1, 8192, 0},
    {"1.3B_32K_clipping_gpu_updates", 24, 1570, 4, 4, 8192, kClipsNothing, 0, 0, true},
    {"1.3B_8K_gpu_updates", 24, 1570, 1, 1, 8192, 0, 0, 0, true},
    {"1.3B_8K_clipping_gpu_updates", 24, 1570, 1, 1, 8192, kClipsNothing, 0, 0, true},
    {"1.3B_8K_clipping", 24, 1570, 1, 1, 8192, kClipsNothing},
    {"1.3B_8K_clipping_speculative", 24, 1570, 1, 1, 8192, kClipsNothing, 100},
    {"6.7B_32K", 32, 785, 8, 2, 4096, 0},
    {"6.7B_32K_last_pass_of_4", 32, 785, 8, 2, 4096, 0, 0, 4},
    {"6.7B_128K", 32, 785, 32, 2, 4096, 0},
    {"6.7B_128K_clipping", 32, 785, 32, 2, 4096, kClipsNothing},
    {"6.7B_128K_clipping_speculative", 32, 785, 32, 2, 4096, kClipsNothing, 50},
    {"6.7B_128K_clipping_gpu_updates", 32, 785, 32, 2, 4096, kClipsNothing, 0, 0, true},
    // As much of the states as 80 GB hold beside passes of 2 and of 1.
    {"6.7B_128K_clipping_ratio_0.82", 32, 785, 32, 2, 4096, kClipsNothing, 0, 0, false, 0.82},
    {"6.7B_128K_clipping_ratio_0.57", 32, 785, 32, 1, 4096, kClipsNothing, 0, 0, false, 0.57},
    {"6.7B_128K_clipping_ratio_0.57_gpu_updates", 32, 785, 32, 1, 4096, kClipsNothing, 0, 0, true,
     0.57},
};

}  // namespace sluice::bench
