#pragma once
// Choices of a placement where a budget cannot hold everything, and the passes of a step. Which
// choice is faster depends on the machine. Thread-safe: values and free functions without state.

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "sluice/plan/plan.hpp"

namespace sluice::plan {

// All false by default: items with the least traffic per byte held leave a tier first.
struct Preferences {
  // Weights leave host memory before gradients and optimizer states do.
  bool weights_leave_first = false;
  // Unit inputs wait for the backward pass in host memory and all units are recomputed, so the
  // device retains more weights. Only with "activations": "auto".
  bool inputs_in_host = false;
  // From forward to backward, the device retains weights before activations. Only with
  // "activations": "auto".
  bool retain_weights_first = false;
  // Tiles for reading states ahead get spare host memory before gradients that wait.
  bool read_ahead_first = false;
  // The cache gets spare host memory last. Only with "cache_bytes": "auto".
  bool cache_last = false;
  // No gradients stay on the GPU until their updates for the sake of speed: the link may be what
  // bounds updates. Only on a GPU.
  bool gradients_in_host = false;
  // The passes of a step; empty: make_plan() chooses. Only where the configuration leaves them
  // open.
  std::optional<PassSizes> passes;

  // Gradients that other units add to wait in host memory: tiles without gradients are smaller.
  // Tried where larger tiles find no room; never a search option.
  bool tied_gradients_in_host = false;
  // Moves everything movable off the device. Tried only when all else fails; never a search option.
  bool least_on_device = false;
  // First units whose states are not on NVMe although the configuration puts them there: the drive
  // has no room. Never a search option.
  std::size_t units_off_nvme = 0;

  bool operator==(const Preferences&) const = default;
};

// All preferences that differ from these, by which `plan` was made, in one choice.
std::vector<Preferences> neighbours(const Preferences& preferences, const Plan& plan);

// The differences from the defaults, as text; empty for the defaults.
std::string text_of(const Preferences& preferences);

}  // namespace sluice::plan
