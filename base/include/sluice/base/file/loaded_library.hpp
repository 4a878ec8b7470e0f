#pragma once
// Libraries that are loaded by name when they are needed. Not installed: programs that use it link
// the loader's library.

#include <dlfcn.h>

#include <memory>
#include <string>
#include <string_view>

namespace sluice {

// A library, which stays loaded. Confined to the thread that loads.
class LoadedLibrary {
 public:
  // Takes the first of: the library that this process has already; that of `folder`, where
  // LibTorch's own was when this was built; the one that the loader finds. LibTorch, which may come
  // later, gets the same one by its name, and an older one of the system lacks functions.
  explicit LoadedLibrary(const std::string& name, const std::string& folder = "") : name_(name) {
    library_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (library_ == nullptr && !folder.empty())
      library_ = ::dlopen((folder + "/" + name).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) library_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ != nullptr) return;
    why_not_ =
        ::dlerror() + std::string("; if it is installed, name its folder in LD_LIBRARY_PATH");
  }

  // Null when the library is not loaded, or lacks the function.
  template <typename Function>
  void find(Function& function, const char* name) {
    function = library_ == nullptr ? nullptr : reinterpret_cast<Function>(::dlsym(library_, name));
    if (function == nullptr && why_not_.empty()) why_not_ = name_ + " has no " + name;
  }

  // Why the library is not loaded, or the first function that it lacks; empty when all is there.
  const std::string& why_not() const { return why_not_; }
  // An Api over the functions that were found. Null when the library is not loaded or lacks one of
  // them; `why_not` says so, and is empty otherwise.
  template <typename Api, typename Functions>
  std::unique_ptr<Api> make(const Functions& functions, std::string& why_not) const {
    why_not = why_not_;
    return why_not.empty() ? std::make_unique<Api>(functions) : nullptr;
  }

 private:
  const std::string name_;
  void* library_ = nullptr;
  std::string why_not_;
};

// "event_record(event, stream)" to "event_record".
inline std::string function_of(std::string_view call) {
  return std::string(call.substr(0, call.find('(')));
}

}  // namespace sluice
