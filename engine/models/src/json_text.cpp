#include "json_text.hpp"

#include <optional>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/json/json_reader.hpp"

namespace sluice::models {

Json::Value parse_json(const std::string& path, const std::string& part, const std::string& text) {
  std::string why;
  std::optional<Json::Value> value = sluice::parse_json(text, &why);
  if (!value) throw StorageError(path, part + " is no valid JSON: " + why);
  return *std::move(value);
}

}  // namespace sluice::models
