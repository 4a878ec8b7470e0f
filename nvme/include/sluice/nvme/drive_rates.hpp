#pragma once
// Relative speeds of several drives under simultaneous load, for the weights of a stripe
// (striped_file.hpp). A measurement of about a second, not a bench.
//
// Thread-safe: free functions without state.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sluice/nvme/io_backend.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/nvme/load.hpp"

namespace sluice::nvme {

struct DriveRatesOptions {
  BackendKind backend = BackendKind::automatic;
  unsigned io_threads = 1;
  IoEngineOptions engine{.depth = 16};
  std::uint64_t file_bytes = 64U << 20U;  // largest file on each drive, at least 32 MiB
  double seconds = 1;                     // for each pattern
};
// Bytes per second of each directory's drive while all drives run the same pattern: one row for
// each pattern, one column for each directory. Uses unlinked files, which vanish in any case. Empty
// when a file would have less than 32 MiB. Blocks until the files are filled and every pattern has
// run for its seconds. Throws IoError.
std::vector<std::vector<double>> measure_drive_rates(std::span<const std::string> directories,
                                                     std::span<const LoadPattern> patterns,
                                                     const DriveRatesOptions& options);

// Checks in a moment that measure_drive_rates() can measure with blocks of `block_bytes` in every
// directory: makes a file there and removes it. Throws DoesNotFit when a drive has too little free
// space, and IoError.
void check_drive_rates(std::span<const std::string> directories, std::uint64_t block_bytes);

// Index of the drive that the others waited for, when drives are loaded by their weights: it was
// busy more than 1.5 times as long as every other drive, and more than a second longer. Empty when
// there is none.
std::optional<std::size_t> slow_drive(std::span<const double> busy_seconds);

}  // namespace sluice::nvme
