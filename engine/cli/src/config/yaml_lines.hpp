#pragma once
// The part of YAML that Accelerate writes: keys with plain values, nested by indentation, comments.
// Thread-safe: a free function without state.

#include <json/value.h>

#include <string>

namespace sluice::cli {

// The document as a JSON object. Throws InvalidArgument "PATH:LINE: why" at the first line outside
// of that part of YAML: lists, flow collections, several documents, text over several lines.
Json::Value parse_yaml_lines(const std::string& text, const std::string& path);

}  // namespace sluice::cli
