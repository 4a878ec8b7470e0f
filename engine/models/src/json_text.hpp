#pragma once
// JSON of files that other programs wrote. Thread-safe: a free function without state.

#include <json/json.h>

#include <string>

namespace sluice::models {

// Parses strict JSON. Throws StorageError naming `path` and `part`, such as "the header", with the
// line and the column of the mistake.
Json::Value parse_json(const std::string& path, const std::string& part, const std::string& text);

}  // namespace sluice::models
