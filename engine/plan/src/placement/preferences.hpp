#pragma once
// What a placement may do one way or another where a budget does not hold everything. Which way is
// faster depends on the machine. Not installed.

#include <string>
#include <vector>

namespace sluice::plan {

// The usual ones, all false: what moves least per byte held leaves a tier first.
struct Preferences {
  // Weights leave host memory before gradients and optimizer states do.
  bool weights_leave_first = false;
  // Inputs of units wait for the backward pass in host memory, all units are computed again, and
  // the device keeps more weights. Only where the configuration leaves activations to the plan.
  bool inputs_in_host = false;
  // From forward to backward the device keeps weights rather than activations. As above.
  bool keep_weights_first = false;
  // Of host memory that is left, tiles to read states ahead get theirs before gradients that wait.
  bool read_ahead_first = false;
  // And the cache gets what these leave; only where the configuration leaves its size to the plan.
  bool cache_last = false;

  // As little as can be has its home on the device. A last resort, which nobody is asked about.
  bool least_on_device = false;

  bool operator==(const Preferences&) const = default;
};

// Those that differ in one of them.
std::vector<Preferences> neighbours(const Preferences& preferences);

// How they differ from the usual ones; empty for those.
std::string text_of(const Preferences& preferences);

}  // namespace sluice::plan
