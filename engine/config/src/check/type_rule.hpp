#pragma once
// The type column of the key table, as a check. The text is the rule: alternatives joined by " or
// ". Alternatives are
//   bool  integer  number  string  list  object  bytes  one of a, b, c
// where integer and number may carry a range: ">= 0", "> 0", "in [0, 1)".
// Thread-safe: constant after construction.

#include <json/value.h>

#include <limits>
#include <string_view>
#include <vector>

namespace sluice::config {

class TypeRule {
 public:
  // `text` comes from the table. A text outside the grammar is a programming error.
  explicit TypeRule(std::string_view text);

  bool accepts(const Json::Value& value) const;

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
