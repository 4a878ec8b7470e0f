#pragma once
// How fast drives are beside each other: for the weights of a stripe (striped_file.hpp). Not a
// bench: a second, to see which of them is the slower one.
//
// Thread-safe: a free function without state.

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
  std::uint64_t file_bytes = 64U << 20U;  // of each drive's file, at most
  double seconds = 1;                     // of each pattern
};
// Bytes a second that each directory's drive moves while all of them do the same: by pattern, then
// directory. In files without a name, which are gone however this ends. Empty when one of them has
// less than 32 MiB free. Blocks for the seconds of the patterns and the time to fill the files.
// Throws IoError.
std::vector<std::vector<double>> measure_drive_rates(std::span<const std::string> directories,
                                                     std::span<const LoadPattern> patterns,
                                                     const DriveRatesOptions& options);

// Which of several drives, loaded by their weights, was busy half as long again as every other one
// and more than a second longer: the one that the others waited for. Empty: none.
std::optional<std::size_t> slow_drive(std::span<const double> busy_seconds);

}  // namespace sluice::nvme
