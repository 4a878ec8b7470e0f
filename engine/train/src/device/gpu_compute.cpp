#include "device/gpu_compute.hpp"

#include <dlfcn.h>

#include <string>

#include "sluice/base/error.hpp"

namespace sluice::train {

std::unique_ptr<GpuCompute> load_gpu_compute(int index, TensorMemory tensors) {
  // Found beside this library, or where the loader looks.
  void* library = ::dlopen("libsluice_train_gpu.so", RTLD_NOW | RTLD_LOCAL);
  const char* error = library == nullptr ? ::dlerror() : nullptr;
  SLUICE_CHECK(library != nullptr, std::string("LibTorch's part for GPUs cannot be loaded: ") +
                                       (error == nullptr ? "libsluice_train_gpu.so" : error));
  auto* make = reinterpret_cast<MakeGpuCompute*>(::dlsym(library, kMakeGpuCompute));
  SLUICE_CHECK(make != nullptr, std::string("libsluice_train_gpu.so has no ") + kMakeGpuCompute +
                                    ": of another build");
  std::unique_ptr<GpuCompute> made;
  make(index, tensors, &made);
  return made;
}

}  // namespace sluice::train
