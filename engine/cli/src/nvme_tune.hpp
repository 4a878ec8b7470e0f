#pragma once
// What the parts of `sluice nvme tune` share. Thread-compatible: callers synchronise.

#include <string>
#include <vector>

#include "arguments.hpp"
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

// Columns of the surface for one pattern: a row for each block, a column for each depth.
struct SurfaceTable {
  std::vector<std::uint32_t> blocks;
  std::vector<unsigned> depths;
  // By block, then depth; null where a setting has too much in flight, of no rounds where it was
  // not measured.
  std::vector<std::vector<const nvme::TunePoint*>> points;
};
SurfaceTable surface_table(const std::vector<nvme::TunePoint>& surface);

struct SurfacePattern {
  const char* name;
  double nvme::TuneRates::*rate;
};
inline constexpr SurfacePattern kSurfacePatterns[] = {{"read", &nvme::TuneRates::read},
                                                      {"write", &nvme::TuneRates::write},
                                                      {"mixed", &nvme::TuneRates::mixed}};

// The setting that is used where a configuration names none.
nvme::TuneSetting default_setting();
// "blocks of 256 KiB, depth 32".
std::string setting_text(const nvme::TuneSetting& setting);
// "read 1.00, write 2.00, mixed 3.00 GB/s".
std::string rates_text(const nvme::TuneRates& rates);
// A sentence on what was chosen beside the default, and how sure that is; empty where the default
// was not among the settings.
std::string gain_text(const TuneOutcome& outcome);
// "gains 4.0 % (90 % interval 1.0 % to 7.0 %)", "loses ...".
std::string gain_text(const nvme::RatioSummary& gain);
// A sentence on the kernel polling for requests, or that it was not tried.
std::string polling_text(const TuneOutcome& outcome);
// What is printed at the end: a table for each pattern, and lines.
std::string tune_text(const TuneOutcome& outcome);

// The part of a configuration: its sections "aio" and "sluice".
std::string tuned_config(const NvmeTuneArguments& arguments, const TuneOutcome& outcome);

// A self-contained page: the surface as a picture for each pattern, the settings.
std::string tune_page(const NvmeTuneArguments& arguments, const TuneOutcome& outcome,
                      const std::string& command_line);

}  // namespace sluice::cli
