#include "check/type_rule.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>

namespace sluice::config {

namespace {

double number_of(std::string_view text) {
  return std::strtod(std::string(text).c_str(), nullptr);
}

// Removes and returns the text before `separator`, or all of it without one.
std::string_view take_until(std::string_view& text, std::string_view separator) {
  const std::size_t at = text.find(separator);
  const std::string_view part = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view() : text.substr(at + separator.size());
  return part;
}

}  // namespace

TypeRule::TypeRule(std::string_view text) {
  while (!text.empty()) add_alternative(take_until(text, " or "));
}

void TypeRule::add_alternative(std::string_view text) {
  if (text.starts_with("one of ")) {
    text.remove_prefix(7);
    while (!text.empty()) choices_.push_back(take_until(text, ", "));
    return;
  }
  const std::string_view kind = take_until(text, " ");
  const std::pair<std::string_view, bool*> kinds[] = {
      {"bool", &bool_}, {"integer", &integer_}, {"number", &number_}, {"string", &string_},
      {"list", &list_}, {"object", &object_},   {"bytes", &bytes_}};
  const auto found = std::find_if(std::begin(kinds), std::end(kinds),
                                  [&](const auto& entry) { return entry.first == kind; });
  assert(found != std::end(kinds));
  *found->second = true;
  if (!text.empty()) set_range(text);
}

void TypeRule::set_range(std::string_view text) {
  if (text.starts_with(">= ")) {
    lower_ = number_of(text.substr(3));
  } else if (text.starts_with("> ")) {
    lower_ = number_of(text.substr(2));
    lower_open_ = true;
  } else {
    assert(text.starts_with("in [") || text.starts_with("in ("));
    lower_open_ = text[3] == '(';
    upper_open_ = text.back() == ')';
    text.remove_prefix(4);
    lower_ = number_of(take_until(text, ", "));
    upper_ = number_of(text);
  }
}

bool TypeRule::in_range(double value) const {
  return (lower_open_ ? value > lower_ : value >= lower_) &&
         (upper_open_ ? value < upper_ : value <= upper_);
}

bool TypeRule::accepts_kind(const Json::Value& value) const {
  if (value.isBool()) return bool_;
  if (value.isString()) {
    return string_ || bytes_ ||
           std::find(choices_.begin(), choices_.end(), value.asString()) != choices_.end();
  }
  if (value.isArray()) return list_;
  if (value.isObject()) return object_;
  if (!value.isNumeric()) return false;
  // 5e8 and 500000000.0 are integers too, as in DeepSpeed.
  return number_ || ((integer_ || bytes_) && value.isInt64());
}

bool TypeRule::accepts(const Json::Value& value) const {
  const bool is_number = value.isNumeric() && !value.isBool();
  return accepts_kind(value) && (!is_number || in_range(value.asDouble()));
}

Json::Value TypeRule::number_in(const std::string& text) const {
  if (!(integer_ || number_) || text.empty()) return {};
  const bool whole =
      text.find_first_not_of("0123456789", text[0] == '-' ? 1 : 0) == std::string::npos &&
      text.back() != '-' && text.size() < 19;
  if (whole) return static_cast<Json::Int64>(std::stoll(text));
  const bool numeric = text.find_first_not_of("0123456789.eE+-") == std::string::npos;
  if (!number_ || !numeric) return {};
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return *end == '\0' && std::isfinite(value) ? Json::Value(value) : Json::Value();
}

}  // namespace sluice::config
