#include "sluice/models/parallel_check.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <string>

#include "sluice/base/error.hpp"

namespace sluice::models {

void check_parallel_work() {
  const torch::NoGradGuard no_grad;
  // A thread gets at least 32768 elements (at::internal::GRAIN_SIZE); more threads than eight are
  // not needed to see that a second one is absent.
  constexpr std::int64_t kElements = 8 * at::internal::GRAIN_SIZE;
  const torch::Tensor values = torch::zeros({kElements}, torch::kFloat32);
  values.add_(1);
  const float* begin = values.const_data_ptr<float>();
  const auto missed = kElements - std::count(begin, begin + kElements, 1.0F);
  SLUICE_CHECK(
      missed == 0,
      "LibTorch's kernels left " + std::to_string(missed) + " of " + std::to_string(kElements) +
          " elements out: OpenMP gives them fewer threads than the " +
          std::to_string(at::get_num_threads()) +
          " they ask for; look for OMP_ variables in the environment (OMP_MAX_ACTIVE_LEVELS, "
          "OMP_THREAD_LIMIT), unset them, and choose the threads with \"sluice\": {\"threads\": "
          "{\"compute\": N}}");
}

}  // namespace sluice::models
