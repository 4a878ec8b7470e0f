#pragma once
// A checked configuration as key paths and values. Thread-safe: a free function without state.

#include <json/value.h>

#include <string>
#include <utility>
#include <vector>

#include "sluice/config/train_config.hpp"

namespace sluice::cli {

// The values that a run with this configuration uses, by key path, in the order of the file's
// sections. A value that the planner chooses is "auto". Sections without effect are left out.
std::vector<std::pair<std::string, Json::Value>> resolved_values(const config::TrainConfig& config);

// Where a value of resolved_values() comes from: "ds.json:3:5", "--learning-rate", "default",
// "auto" (the Trainer's value for the file's "auto"), "derived" (from other values), or "planned".
std::string origin_of(const config::TrainConfig& config, const std::string& key,
                      const Json::Value& value);

}  // namespace sluice::cli
