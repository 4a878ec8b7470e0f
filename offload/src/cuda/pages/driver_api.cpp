#include "cuda/pages/driver_api.hpp"

#include "sluice/base/error.hpp"
#include "sluice/base/file/loaded_library.hpp"
#include "sluice/base/log.hpp"

namespace sluice::offload::cuda {

namespace {

constexpr const char* kLibrary = "libcuda.so.1";

// The functions by the driver's own names and types.
struct Functions {
  decltype(&::cuGetErrorName) error_name;
  decltype(&::cuGetErrorString) error_text;
  decltype(&::cuMemGetAllocationGranularity) mem_get_granularity;
  decltype(&::cuMemCreate) mem_create;
  decltype(&::cuMemRelease) mem_release;
  decltype(&::cuMemAddressReserve) mem_address_reserve;
  decltype(&::cuMemAddressFree) mem_address_free;
  decltype(&::cuMemMap) mem_map;
  decltype(&::cuMemUnmap) mem_unmap;
  decltype(&::cuMemSetAccess) mem_set_access;
};

Functions find_functions(LoadedLibrary& library) {
  Functions f{};
  library.find(f.error_name, "cuGetErrorName");
  library.find(f.error_text, "cuGetErrorString");
  library.find(f.mem_get_granularity, "cuMemGetAllocationGranularity");
  library.find(f.mem_create, "cuMemCreate");
  library.find(f.mem_release, "cuMemRelease");
  library.find(f.mem_address_reserve, "cuMemAddressReserve");
  library.find(f.mem_address_free, "cuMemAddressFree");
  library.find(f.mem_map, "cuMemMap");
  library.find(f.mem_unmap, "cuMemUnmap");
  library.find(f.mem_set_access, "cuMemSetAccess");
  return f;
}

CUmemLocation location_of(int device) {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return location;
}

CUmemAllocationProp properties_of(int device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;  // resident: the only type there is
  properties.location = location_of(device);
  return properties;
}

class Driver final : public DriverApi {
 public:
  explicit Driver(const Functions& functions) : f_(functions) {}

  std::string error_name(CUresult error) override { return text_of(f_.error_name, error); }
  std::string error_text(CUresult error) override { return text_of(f_.error_text, error); }
  DriverResult mem_get_granularity(std::size_t* page_bytes, int device) override {
    const CUmemAllocationProp properties = properties_of(device);
    return f_.mem_get_granularity(page_bytes, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  }
  DriverResult mem_create(CUmemGenericAllocationHandle* page, std::size_t size_bytes,
                          int device) override {
    const CUmemAllocationProp properties = properties_of(device);
    return f_.mem_create(page, size_bytes, &properties, /*flags=*/0);
  }
  DriverResult mem_release(CUmemGenericAllocationHandle page) override {
    return f_.mem_release(page);
  }
  DriverResult mem_address_reserve(CUdeviceptr* begin, std::size_t size_bytes) override {
    return f_.mem_address_reserve(begin, size_bytes, /*alignment=*/0, /*addr=*/0, /*flags=*/0);
  }
  DriverResult mem_address_free(CUdeviceptr begin, std::size_t size_bytes) override {
    return f_.mem_address_free(begin, size_bytes);
  }
  DriverResult mem_map(CUdeviceptr begin, std::size_t size_bytes,
                       CUmemGenericAllocationHandle page) override {
    return f_.mem_map(begin, size_bytes, /*offset=*/0, page, /*flags=*/0);
  }
  DriverResult mem_unmap(CUdeviceptr begin, std::size_t size_bytes) override {
    return f_.mem_unmap(begin, size_bytes);
  }
  DriverResult mem_set_access(CUdeviceptr begin, std::size_t size_bytes, int device) override {
    CUmemAccessDesc access{};
    access.location = location_of(device);
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return f_.mem_set_access(begin, size_bytes, &access, 1);
  }

 private:
  static std::string text_of(CUresult (*function)(CUresult, const char**), CUresult error) {
    const char* text = nullptr;
    if (function(error, &text) != CUDA_SUCCESS || text == nullptr)
      return "CUresult " + std::to_string(static_cast<int>(error));
    return text;
  }

  const Functions f_;
};

CudaError make_error(DriverApi& api, CUresult error, const char* call,
                     const std::string& what_for) {
  return CudaError(static_cast<int>(error), api.error_name(error), api.error_text(error),
                   function_of(call), what_for);
}

}  // namespace

std::unique_ptr<DriverApi> load_cuda_driver(std::string& why_not) {
  LoadedLibrary library(kLibrary);
  return library.make<Driver>(find_functions(library), why_not);
}

void throw_driver_failed(DriverApi& api, CUresult error, const char* call,
                         const std::string& what_for) {
  throw make_error(api, error, call, what_for);
}

void log_driver_failed(DriverApi& api, CUresult error, const char* call) noexcept {
  try {
    log(LogLevel::error, make_error(api, error, call, "a GPU").what());
  } catch (...) {  // no memory for the text
  }
}

}  // namespace sluice::offload::cuda
