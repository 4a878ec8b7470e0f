#pragma once
// The outcome of `sluice nvme tune`. Thread-compatible: callers synchronise.

#include <string>
#include <vector>

#include "sluice/nvme/tuner.hpp"

namespace sluice::cli {

// Bytes per second of the pattern swap with so many reads in a row while a write waits, in each
// round.
struct SwapRates {
  unsigned reads_per_write = 0;
  std::vector<double> rounds;
};

struct TuneOutcome {
  std::vector<nvme::TunePoint> surface;  // every setting, those that time was too short for too
  bool finished = false;                 // every round was measured
  nvme::TuneChoice choice;
  std::vector<SwapRates> swap;
  unsigned reads_per_write = 0;  // chosen
  // Bytes per second of the pattern swap without and with the kernel polling for requests, in each
  // round; empty: not tried.
  std::vector<double> unpolled;
  std::vector<double> polled;
  bool submit_polling = false;  // chosen
  std::string backend;
  double seconds = 0;
};

}  // namespace sluice::cli
