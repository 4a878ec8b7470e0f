#pragma once
// JsonReader: JSON texts from outside, as values. Not installed: it is for components that link
// JsonCpp, and this one does not.

#include <json/reader.h>
#include <json/value.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// Strict JSON: without comments, without a key twice, with nothing behind the value.
inline Json::CharReaderBuilder strict_json() {
  Json::CharReaderBuilder builder;
  Json::CharReaderBuilder::strictMode(&builder.settings_);
  return builder;
}

// As JsonCpp reads by itself: with comments, with anything behind the value. The last one of equal
// keys counts.
inline Json::CharReaderBuilder lenient_json() {
  return {};
}

// Thread-compatible: callers synchronise.
class JsonReader {
 public:
  explicit JsonReader(const Json::CharReaderBuilder& builder = strict_json())
      : reader_(builder.newCharReader()) {}

  // Empty when the text is no such JSON; `why` then says it, with line and column. JsonCpp throws
  // for a text that is nested too deeply; here such a text is none.
  std::optional<Json::Value> read(std::string_view text, std::string* why = nullptr) const {
    Json::Value value;
    try {
      if (reader_->parse(text.data(), text.data() + text.size(), &value, why)) return value;
    } catch (const Json::Exception&) {
      if (why != nullptr) *why = "it is nested too deeply";
    }
    return std::nullopt;
  }

 private:
  std::unique_ptr<Json::CharReader> reader_;
};

// The value of a strict JSON text, as JsonReader reads it. Thread-safe.
inline std::optional<Json::Value> parse_json(std::string_view text, std::string* why = nullptr) {
  return JsonReader().read(text, why);
}

}  // namespace sluice
