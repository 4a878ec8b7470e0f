#pragma once
// Libraries of CUDA, which come with LibTorch's wheel and are loaded by name. Not installed.

#include <dlfcn.h>

#include <string>

namespace sluice::offload::cuda {

// By the loader, else from where the runtime was when this was built: it is no library of the
// system. Stays loaded. Null when it cannot be: then `why_not` says why.
inline void* open_library(const char* name, std::string& why_not) {
  if (void* library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  const std::string built_with = std::string(SLUICE_CUDART_FOLDER) + "/" + name;
  if (void* library = ::dlopen(built_with.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  const char* error = ::dlerror();
  why_not = error == nullptr ? std::string(name) + " cannot be loaded" : error;
  return nullptr;
}

// Functions of a library; the first that it lacks is named in `missing`. Confined to the
// thread that loads. `library` and `missing` outlive it.
class Finder {
 public:
  Finder(void* library, std::string& missing) : library_(library), missing_(missing) {}

  template <typename Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library_, name));
    if (function == nullptr && missing_.empty()) missing_ = name;
  }

 private:
  void* library_;
  std::string& missing_;
};

}  // namespace sluice::offload::cuda
