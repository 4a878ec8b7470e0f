#pragma once
// Parses the JSON that a program wrote; invalid JSON fails the test.
// Thread-safe: a free function without state.

#include <gtest/gtest.h>
#include <json/json.h>

#include <sstream>
#include <string>

namespace sluice::test {

inline Json::Value parse_json(const std::string& text) {
  Json::Value value;
  std::string errors;
  std::istringstream stream(text);
  EXPECT_TRUE(Json::parseFromStream(Json::CharReaderBuilder(), stream, &value, &errors))
      << errors << text;
  return value;
}

}  // namespace sluice::test
