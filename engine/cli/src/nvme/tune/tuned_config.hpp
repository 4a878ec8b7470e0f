#pragma once
// The part of a configuration that `sluice nvme tune` writes. Thread-safe: free functions without
// state.

#include <string>

#include "command/arguments.hpp"
#include "nvme/tune/tune_outcome.hpp"

namespace sluice::cli {

// The part of a configuration: its sections "aio" and "sluice".
std::string tuned_config(const NvmeTuneArguments& arguments, const TuneOutcome& outcome);

// Checks that the file of --out may be replaced: it is absent, empty, or has settings of an earlier
// nvme tune. Throws InvalidArgument for any other content.
void check_is_settings(const std::string& path);

}  // namespace sluice::cli
