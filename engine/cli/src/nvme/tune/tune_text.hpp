#pragma once
// The outcome of `sluice nvme tune` as text. Thread-safe: values and free functions without state.

#include <cstdint>
#include <string>
#include <vector>

#include "nvme/tune/tune_outcome.hpp"
#include "sluice/nvme/paired_ratios.hpp"
#include "sluice/nvme/tuner.hpp"

namespace sluice::cli {

// The surface as a table: a row for each block size, a column for each depth.
struct SurfaceTable {
  std::vector<std::uint32_t> blocks;
  std::vector<unsigned> depths;
  // Indexed by block, then by depth. Null: the setting has too many bytes in flight. A point with 0
  // rounds was not measured.
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

// The setting of a configuration without "aio".
nvme::TuneSetting default_setting();
// "blocks of 256 KiB, depth 32".
std::string setting_text(const nvme::TuneSetting& setting);
// "read 1.00, write 2.00, mixed 3.00 GB/s".
std::string rates_text(const nvme::TuneRates& rates);
// A sentence that compares the choice with the default, and says how sure the comparison is. Empty
// when the default was not among the settings.
std::string gain_text(const TuneOutcome& outcome);
// "gains 4.0 % (90 % interval 1.0 % to 7.0 %)", "loses ...".
std::string gain_text(const nvme::RatioSummary& gain);
// A sentence on the kernel polling for requests; says so when polling was not tried.
std::string polling_text(const TuneOutcome& outcome);
// The text that is printed at the end: a table for each pattern, then lines on the choice.
std::string tune_text(const TuneOutcome& outcome);

}  // namespace sluice::cli
