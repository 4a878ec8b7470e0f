#pragma once
// CufileApi: the part of cuFile (GPUDirect Storage) that Sluice calls, one function per function of
// cuFile. Every call of cuFile goes through it, so tests can order, delay and fail the calls. The
// compiler rejects an ignored result. Not installed.

#include <cufile.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace sluice::offload::cuda {

// A CUfileError_t that must not be ignored. A type, because GCC 12 ignores [[nodiscard]] on a
// virtual function.
struct [[nodiscard]] CufileResult {
  CUfileOpError error = CU_FILE_SUCCESS;
  CUresult cuda_error = CUDA_SUCCESS;  // the driver's error, if the driver failed
};

// The result of a read: bytes, 0 at the end of the file, -1 with an errno, or a negative
// CUfileOpError.
struct [[nodiscard]] CufileRead {
  std::int64_t result = 0;
  int error_number = 0;
};

// Thread-safe, as cuFile is.
class CufileApi {
 public:
  virtual ~CufileApi() = default;

  // Only while the driver is closed.
  virtual CufileResult set_parameter_bool(CUFileBoolConfigParameter_t parameter, bool value) = 0;
  virtual CufileResult driver_open() = 0;
  virtual CufileResult driver_close() = 0;
  virtual CufileResult handle_register(CUfileHandle_t* handle, int fd) = 0;
  virtual void handle_deregister(CUfileHandle_t handle) = 0;
  // Blocks. In the calling thread's CUDA context.
  virtual CufileRead read(CUfileHandle_t handle, void* device_to, std::size_t size_bytes,
                          std::uint64_t offset_bytes) = 0;
};

// Loads the library, which stays loaded for the life of the process. Null when loading fails, with
// the reason in `why_not`.
std::unique_ptr<CufileApi> load_cufile(std::string& why_not);

// The meaning of a CUfileOpError and, if there is one, a remedy.
std::string cufile_error_text(CUfileOpError error);

// Throws CudaError with the purpose, the call, and the text and name of the error.
[[noreturn]] void throw_cufile_failed(CufileResult result, const char* call,
                                      const std::string& what_for);

}  // namespace sluice::offload::cuda

// SLUICE_CUFILE(api, driver_open(), "why"): throws CudaError when the call fails.
#define SLUICE_CUFILE(api, call, what_for)                                            \
  do {                                                                                \
    const ::sluice::offload::cuda::CufileResult sluice_result = (api).call;           \
    if (sluice_result.error != CU_FILE_SUCCESS) [[unlikely]]                          \
      ::sluice::offload::cuda::throw_cufile_failed(sluice_result, #call, (what_for)); \
  } while (false)
