#include "cuda/cufile_api.hpp"

#include <cerrno>
#include <string_view>

#include "sluice/base/error.hpp"
#include "sluice/base/file/loaded_library.hpp"

namespace sluice::offload::cuda {

namespace {

constexpr const char* kLibrary = "libcufile.so.0";

// The functions by cuFile's own names and types; the header gives driver_close another name.
struct Functions {
  decltype(&::cuFileSetParameterBool) set_parameter_bool;
  decltype(&::cuFileDriverOpen) driver_open;
  decltype(&::cuFileDriverClose_v2) driver_close;
  decltype(&::cuFileHandleRegister) handle_register;
  decltype(&::cuFileHandleDeregister) handle_deregister;
  decltype(&::cuFileRead) read;
};

CufileResult to_result(const CUfileError_t& error) {
  return {error.err, error.cu_err};
}

class Cufile final : public CufileApi {
 public:
  explicit Cufile(const Functions& functions) : f_(functions) {}

  CufileResult set_parameter_bool(CUFileBoolConfigParameter_t parameter, bool value) override {
    return to_result(f_.set_parameter_bool(parameter, value));
  }
  CufileResult driver_open() override { return to_result(f_.driver_open()); }
  CufileResult driver_close() override { return to_result(f_.driver_close()); }
  CufileResult handle_register(CUfileHandle_t* handle, int fd) override {
    CUfileDescr_t description{};
    description.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
    description.handle.fd = fd;
    return to_result(f_.handle_register(handle, &description));
  }
  void handle_deregister(CUfileHandle_t handle) override { f_.handle_deregister(handle); }
  CufileRead read(CUfileHandle_t handle, void* device_to, std::size_t size_bytes,
                  std::uint64_t offset_bytes) override {
    const ssize_t result =
        f_.read(handle, device_to, size_bytes, static_cast<off_t>(offset_bytes), 0);
    return {result, result == -1 ? errno : 0};
  }

 private:
  const Functions f_;
};

std::string name_of(CUfileOpError error) {
  switch (error) {
#define CUFILE_OP(code, name, text) \
  case name:                        \
    return #name;
    CUFILEOP_STATUS_ENTRIES
#undef CUFILE_OP
  }
  return "CUfileOpError " + std::to_string(static_cast<int>(error));
}

// Remedies for the errors of a machine without GPUDirect Storage.
std::string_view advice(CUfileOpError error) {
  switch (error) {
    case CU_FILE_DRIVER_NOT_INITIALIZED:
    case CU_FILE_DRIVER_VERSION_READ_ERROR:
    case CU_FILE_NVFS_DRIVER_ERROR:
    case CU_FILE_NVFS_SETUP_ERROR:
      return "the kernel module nvidia-fs is absent or does not answer (modprobe nvidia-fs)";
    case CU_FILE_DRIVER_VERSION_MISMATCH:
      return "the kernel module nvidia-fs is of another version than cuFile; update it";
    case CU_FILE_IO_NOT_SUPPORTED:
    case CU_FILE_INVALID_FILE_TYPE:
    case CU_FILE_IO_DISABLED:
      return "cuFile does not read this file system directly (it does ext4 and xfs on NVMe)";
    case CU_FILE_DIO_NOT_SET:
    case CU_FILE_INVALID_FILE_OPEN_FLAG:
      return "the file is not open for direct I/O";
    case CU_FILE_PERMISSION_DENIED:
      return "no right to use /dev/nvidia-fs*";
    case CU_FILE_GPU_MEMORY_PINNING_FAILED:
      return "the GPU has no BAR1 memory left (nvidia-smi -q -d MEMORY shows it)";
    default:
      return "";
  }
}

}  // namespace

std::string cufile_error_text(CUfileOpError error) {
  const std::string_view known = advice(error);
  return known.empty() ? std::string(cufileop_status_error(error)) : std::string(known);
}

void throw_cufile_failed(CufileResult result, const char* call, const std::string& what_for) {
  std::string text = cufile_error_text(result.error);
  if (result.error == CU_FILE_CUDA_DRIVER_ERROR)
    text += ", CUresult " + std::to_string(static_cast<int>(result.cuda_error));
  throw CudaError(static_cast<int>(result.error), name_of(result.error), text,
                  "cuFile " + function_of(call), what_for);
}

std::unique_ptr<CufileApi> load_cufile(std::string& why_not) {
  LoadedLibrary library(kLibrary, SLUICE_CUDART_FOLDER);
  Functions f{};
  library.find(f.set_parameter_bool, "cuFileSetParameterBool");
  library.find(f.driver_open, "cuFileDriverOpen");
  library.find(f.driver_close, "cuFileDriverClose_v2");
  library.find(f.handle_register, "cuFileHandleRegister");
  library.find(f.handle_deregister, "cuFileHandleDeregister");
  library.find(f.read, "cuFileRead");
  return library.make<Cufile>(f, why_not);
}

}  // namespace sluice::offload::cuda
