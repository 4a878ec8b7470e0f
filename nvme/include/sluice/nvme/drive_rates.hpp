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

namespace sluice::nvme {

// Bytes a second that each directory's drive reads and writes, half and half, while all of them do:
// in files of up to 64 MiB without a name, which are gone however this ends. Empty when one of them
// has less than 32 MiB free. Blocks for about two seconds. Throws IoError.
std::vector<double> measure_drive_rates(std::span<const std::string> directories,
                                        BackendKind backend, unsigned io_threads);

// Which of several drives, loaded by their weights, was busy half as long again as every other one
// and more than a second longer: the one that the others waited for. Empty: none.
std::optional<std::size_t> slow_drive(std::span<const double> busy_seconds);

}  // namespace sluice::nvme
