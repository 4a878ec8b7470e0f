// Compiled by the tests cuda_result_*: a call of the CUDA runtime whose result is ignored must not
// compile.

#include "cuda/cuda_api.hpp"

bool frees(sluice::offload::cuda::CudaApi& api, void* block) {
#ifdef RESULT_IGNORED
  api.free(block);
  return true;
#else
  return api.free(block) == cudaSuccess;
#endif
}
