#pragma once
// The outcome of `sluice nvme tune`. Thread-compatible: callers synchronise.

#include <string>
#include <vector>

#include "sluice/nvme/tuner.hpp"

namespace sluice::cli {

// Bytes per second of the pattern swap in each round, when up to `reads_per_write` reads run in a
// row while a write waits.
struct SwapRates {
  unsigned reads_per_write = 0;
  std::vector<double> rounds;
};

struct TuneOutcome {
  std::vector<nvme::TunePoint> surface;  // every setting, measured or not
  bool finished = false;                 // every round was measured
  nvme::TuneChoice choice;
  std::vector<SwapRates> swap;
  unsigned reads_per_write = 0;  // chosen
  // Bytes per second of the pattern swap in each round, without and with the kernel polling for
  // requests; empty: polling was not tried.
  std::vector<double> unpolled;
  std::vector<double> polled;
  bool submit_polling = false;  // chosen
  std::string backend;
  double seconds = 0;
};

}  // namespace sluice::cli
