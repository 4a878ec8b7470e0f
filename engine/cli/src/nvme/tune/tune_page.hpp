#pragma once
// The page of `sluice nvme tune --html`. Thread-safe: a free function without state.

#include <string>

#include "command/arguments.hpp"
#include "nvme/tune/tune_outcome.hpp"

namespace sluice::cli {

// A self-contained page: the surface as a picture for each pattern, the settings.
std::string tune_page(const NvmeTuneArguments& arguments, const TuneOutcome& outcome,
                      const std::string& command_line);

}  // namespace sluice::cli
