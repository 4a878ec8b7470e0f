#pragma once
// The outcome of `sluice nvme tune` as text. Thread-safe: values and free functions without state.

#include <cstdint>
#include <string>
#include <vector>

#include "nvme/tune/tune_outcome.hpp"
#include "sluice/nvme/paired_ratios.hpp"
#include "sluice/nvme/tuner.hpp"

namespace sluice::cli {

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

}  // namespace sluice::cli
