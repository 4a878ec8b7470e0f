// Compiled by the tests cufile_result_*: a call of cuFile whose result is ignored must not compile.

#include "cuda/cufile_api.hpp"

bool opens(sluice::offload::cuda::CufileApi& api, CUfileHandle_t handle) {
#if defined(RESULT_IGNORED)
  api.driver_open();
#elif defined(READ_IGNORED)
  api.read(handle, nullptr, 0, 0);
#endif
  return api.driver_open().error == CU_FILE_SUCCESS && api.read(handle, nullptr, 0, 0).result == 0;
}
