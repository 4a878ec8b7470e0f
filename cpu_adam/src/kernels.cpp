#include "kernels.hpp"

// clang-format off
#include "targets.inc.hpp"
#include <hwy/targets.h>
// clang-format on

#include <cstdlib>
#include <vector>

#include "sluice/base/error.hpp"
#include "sluice/cpu_adam/optimizer.hpp"

namespace sluice::cpu_adam {

namespace {

std::string list_of_kernels() {
  std::string list;
  for (const Kernel& kernel : kernels()) {
    if (!list.empty()) list += ", ";
    list += kernel.name;
    if (!runs_here(kernel)) list += " (not supported by this CPU)";
  }
  return list;
}

const Kernel& choose() {
  const char* forced = std::getenv("SLUICE_SIMD");
  if (forced != nullptr && *forced != '\0') return find_kernel(forced);
  for (const Kernel& kernel : vector_kernels()) {
    if (runs_here(kernel)) return kernel;
  }
  return scalar_kernel();
}

}  // namespace

std::span<const Kernel> kernels() {
  static const std::vector<Kernel> all = [] {
    std::vector<Kernel> list(vector_kernels().begin(), vector_kernels().end());
    list.push_back(scalar_kernel());
    return list;
  }();
  return all;
}

bool runs_here(const Kernel& kernel) {
  return kernel.highway_target == 0 || (hwy::SupportedTargets() & kernel.highway_target) != 0;
}

const Kernel& find_kernel(std::string_view name) {
  for (const Kernel& kernel : kernels()) {
    if (kernel.name != name) continue;
    SLUICE_CHECK(runs_here(kernel), "SLUICE_SIMD=" + std::string(name) +
                                        ": this CPU cannot run that kernel; there are " +
                                        list_of_kernels());
    return kernel;
  }
  throw InvalidArgument("SLUICE_SIMD=" + std::string(name) +
                        " names no kernel of this build; there are " + list_of_kernels() +
                        "; unset it for the best that this CPU supports");
}

const Kernel& chosen_kernel() {
  static const Kernel& chosen = choose();  // a throw leaves it unset
  return chosen;
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const Kernel& kernel : kernels()) names.emplace_back(kernel.name);
  return names;
}

std::string_view kernel_in_use() {
  return chosen_kernel().name;
}

}  // namespace sluice::cpu_adam
