#pragma once
// Values of the command line over those of a file. Thread-safe: free functions without state.

#include <string>
#include <vector>

#include "json/json_document.hpp"
#include "sluice/config/train_config.hpp"

namespace sluice::config {

// Puts the settings over the document's values. Returns a line for each value of the file that is
// replaced.
std::vector<std::string> apply_settings(JsonDocument& document, const LoadOptions& options);

}  // namespace sluice::config
