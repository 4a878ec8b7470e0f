#pragma once
// The rates of an imitated GPU on the command line, and all options of virtual_step_bench.
// Thread-safe: values and free functions without state.

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

#include "sluice/base/error.hpp"
#include "sluice/offload/tier.hpp"

namespace sluice::bench {

struct Rates {
  double copy_GBps = 55;
  double update_GBps = 180;
  double compute_TFLOPs = 500;
  double wake_up_us = 0;  // after each copy
  bool copies_use_memory = false;
  bool tiles_in_cache = false;
};

// The cases to run, and what their plans leave to the command line.
struct Asked {
  std::string only;                        // empty: all cases
  std::int64_t layers = 0;                 // 0: as the case has
  int tiles = 0;                           // 0: as planned
  std::uint64_t tile_elements = 0;         // 0: six tiles of a block
  std::optional<offload::Tier> gradients;  // empty: as planned
  std::optional<offload::Tier> halves;     // as well
};

struct Options {
  Rates rates;
  Asked asked;
};

inline std::optional<offload::Tier> tier_of(const std::string& option, const std::string& name) {
  if (name == "plan") return std::nullopt;
  if (name == "host") return offload::Tier::host;
  if (name == "gpu") return offload::Tier::device;
  throw InvalidArgument(option + ": plan, host or gpu");
}

// Whether the name is that of a rate, which it sets.
inline bool set_rate(Rates& rates, const std::string& name, const char* value) {
  if (name == "--copy-GBps")
    rates.copy_GBps = std::atof(value);
  else if (name == "--update-GBps")
    rates.update_GBps = std::atof(value);
  else if (name == "--compute-TFLOPs")
    rates.compute_TFLOPs = std::atof(value);
  else
    return false;
  return true;
}

// Likewise for what only virtual_step_bench imitates.
inline bool set_detail(Rates& rates, const std::string& name, const char* value) {
  if (name == "--wake-up-us")
    rates.wake_up_us = std::atof(value);
  else if (name == "--copies-use-memory")
    rates.copies_use_memory = std::atoi(value) != 0;
  else if (name == "--tiles-in-cache")
    rates.tiles_in_cache = std::atoi(value) != 0;
  else
    return false;
  return true;
}

inline bool set_asked(Asked& asked, const std::string& name, const char* value) {
  if (name == "--case")
    asked.only = value;
  else if (name == "--layers")
    asked.layers = std::atoll(value);
  else if (name == "--tiles")
    asked.tiles = std::atoi(value);
  else if (name == "--tile-elements")
    asked.tile_elements = static_cast<std::uint64_t>(std::atoll(value));
  else if (name == "--gradients")
    asked.gradients = tier_of(name, value);
  else if (name == "--upper-halves")
    asked.halves = tier_of(name, value);
  else
    return false;
  return true;
}

// Throws InvalidArgument.
inline Options read_options(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; i += 2) {
    const std::string name = arguments[i];
    SLUICE_CHECK(i + 1 < count, name + " has no value");
    const char* const value = arguments[i + 1];
    if (!set_rate(options.rates, name, value) && !set_detail(options.rates, name, value) &&
        !set_asked(options.asked, name, value)) {
      throw InvalidArgument(
          name +
          ": expected --case, --layers, --copy-GBps, --update-GBps, --compute-TFLOPs, --tiles, "
          "--tile-elements, --wake-up-us, --copies-use-memory, --tiles-in-cache, --gradients or "
          "--upper-halves");
    }
  }
  SLUICE_CHECK(options.rates.copy_GBps > 0 && options.rates.update_GBps > 0 &&
                   options.rates.compute_TFLOPs > 0 && options.asked.layers >= 0,
               "rates are positive numbers");
  return options;
}

}  // namespace sluice::bench
