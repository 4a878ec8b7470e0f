#pragma once
// JSON values as text. Not installed: it is for components that link JsonCpp, and this one does
// not. Thread-safe: a free function without state.

#include <json/value.h>
#include <json/writer.h>

#include <string>

namespace sluice {

// `value` on one line, with all digits of its numbers.
inline std::string json_line(const Json::Value& value) {
  Json::StreamWriterBuilder writer;
  writer["indentation"] = "";
  return Json::writeString(writer, value);
}

}  // namespace sluice
