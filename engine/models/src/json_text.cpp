#include "json_text.hpp"

#include <memory>

#include "sluice/base/error.hpp"

namespace sluice::models {

Json::Value parse_json(const std::string& path, const std::string& part, const std::string& text) {
  Json::CharReaderBuilder builder;
  Json::CharReaderBuilder::strictMode(&builder.settings_);
  const std::unique_ptr<Json::CharReader> reader(builder.newCharReader());
  Json::Value root;
  std::string problems;
  bool parsed = false;
  try {
    parsed = reader->parse(text.data(), text.data() + text.size(), &root, &problems);
  } catch (const Json::Exception& error) {  // nested too deeply
    problems = error.what();
  }
  if (!parsed) throw StorageError(path, part + " is no valid JSON: " + problems);
  return root;
}

}  // namespace sluice::models
