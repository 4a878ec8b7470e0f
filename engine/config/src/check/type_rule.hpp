#pragma once
// The type column of the key table, as a check. The text is the rule: alternatives joined by " or
// ". Alternatives are
//   bool  integer  number  string  list  object  bytes  one of a, b, c
// where integer and number may carry a range: ">= 0", "> 0", "in [0, 1)".
// Thread-safe: constant after construction.

#include <json/value.h>

#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::config {

class TypeRule {
 public:
  // `text` comes from the table. A text outside the grammar is a programming error.
  explicit TypeRule(std::string_view text);

  bool accepts(const Json::Value& value) const;
  // accepts() without the range.
  bool accepts_kind(const Json::Value& value) const;
  // The number that a string holds, where a number is accepted: "8", "-1", for number also "1e-3".
  // Null for any other string.
  Json::Value number_in(const std::string& text) const;

  // The parts of the rule.
  bool takes_bool() const { return bool_; }
  bool takes_integer() const { return integer_; }
  bool takes_number() const { return number_; }
  bool takes_string() const { return string_; }
  bool takes_list() const { return list_; }
  bool takes_object() const { return object_; }
  bool takes_bytes() const { return bytes_; }
  const std::vector<std::string_view>& choices() const { return choices_; }
  // The range; open_ends() says which ends are outside of it.
  std::pair<double, double> range() const { return {lower_, upper_}; }
  std::pair<bool, bool> open_ends() const { return {lower_open_, upper_open_}; }

 private:
  void add_alternative(std::string_view text);
  void set_range(std::string_view text);
  bool in_range(double value) const;

  bool bool_ = false, integer_ = false, number_ = false, string_ = false;
  bool list_ = false, object_ = false, bytes_ = false;
  double lower_ = -std::numeric_limits<double>::infinity();
  double upper_ = std::numeric_limits<double>::infinity();
  bool lower_open_ = false, upper_open_ = false;
  std::vector<std::string_view> choices_;
};

}  // namespace sluice::config
