#include "sluice/models/parallel_check.hpp"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <string>

#include "sluice/base/error.hpp"

namespace sluice::models {

void check_parallel_work() {
  const torch::NoGradGuard no_grad;
  // Large enough for two threads, so that a missing second thread shows. Every element of the
  // product is kSize, which 16 bits hold exactly.
  constexpr std::int64_t kSize = 64;
  const torch::Tensor ones = torch::ones({kSize, kSize}, torch::kBFloat16);
  const auto missed = kSize * kSize - ones.mm(ones).eq(kSize).sum().item<std::int64_t>();
  SLUICE_CHECK(
      missed == 0,
      "LibTorch multiplies matrices wrongly here, " + std::to_string(missed) + " of " +
          std::to_string(kSize * kSize) +
          " elements: OpenMP gives its kernels fewer threads than "
          "the " +
          std::to_string(at::get_num_threads()) +
          " they ask for. Look for variables OMP_... in the environment (OMP_MAX_ACTIVE_LEVELS, "
          "OMP_THREAD_LIMIT), unset them, and choose the threads with \"sluice\": {\"threads\": "
          "{\"compute\": N}}");
}

}  // namespace sluice::models
