#include "json/json_scan.hpp"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "sluice/base/text.hpp"

namespace sluice::config {

namespace {

// Configurations nest about five levels; JsonCpp recurses once per level.
constexpr std::size_t kMaxDepth = 64;
constexpr const char* kTooSmall = "the number is too small: it would be read as 0";

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool ends_word(char c) {
  return is_space(c) || std::string_view("{}[],:\"#").find(c) != std::string_view::npos;
}

// The number grammar of RFC 8259, section 6.
bool is_json_number(std::string_view word) {
  std::size_t at = 0;
  const auto digits = [&] {
    const std::size_t begin = at;
    while (at < word.size() && is_digit(word[at])) ++at;
    return at > begin;
  };
  if (at < word.size() && word[at] == '-') ++at;
  if (at < word.size() && word[at] == '0') {
    ++at;
  } else if (!digits()) {
    return false;
  }
  if (at < word.size() && word[at] == '.') {
    ++at;
    if (!digits()) return false;
  }
  if (at < word.size() && (word[at] == 'e' || word[at] == 'E')) {
    ++at;
    if (at < word.size() && (word[at] == '+' || word[at] == '-')) ++at;
    if (!digits()) return false;
  }
  return at == word.size();
}

// A word such as GB_SIZE, in capitals: people replace it before they use the file.
bool is_placeholder(std::string_view word) {
  return word.size() > 2 && word.front() >= 'A' && word.front() <= 'Z' &&
         std::all_of(word.begin(), word.end(),
                     [](char c) { return (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_'; });
}

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) { result_.json = text; }

  ScanResult run() {
    while (!result_.error && skip_space_and_comments()) {
      if (is_separated_by_line()) separate();
      take_token();
    }
    insert_missing();
    return std::move(result_);
  }

 private:
  struct Level {
    bool is_object = false;
    bool expects_key = false;
    std::size_t key_offset = 0;            // key of the member whose value comes next
    std::optional<std::size_t> value_end;  // of the last value, until a comma follows it
    std::set<std::string_view> keys;       // as written, between the quotes
  };
  // A quote or comma that JSON needs, and its place in the text.
  struct Missing {
    std::size_t offset = 0;
    char character = 0;
  };

  void fail(std::size_t offset, std::string message) {
    if (!result_.error) result_.error = ScanError{offset, std::move(message)};
  }

  // False at the end of the text, or after an error.
  bool skip_space_and_comments() {
    while (at_ < text_.size()) {
      const std::string_view rest = text_.substr(at_);
      if (is_space(rest[0])) {
        ++at_;
      } else if (rest[0] == '#' || rest.starts_with("//")) {
        blank_until(text_.find_first_of("\r\n", at_));
      } else if (rest.starts_with("/*")) {
        const std::size_t end = text_.find("*/", at_ + 2);
        if (end == std::string_view::npos) {
          fail(at_, "the comment that begins here does not end");
          return false;
        }
        blank_until(end + 2);
      } else {
        return true;
      }
    }
    return false;
  }

  void blank_until(std::size_t end) {
    for (end = std::min(end, text_.size()); at_ < end; ++at_) {
      if (!is_space(text_[at_])) result_.json[at_] = ' ';
    }
  }

  // A value or key that begins on a later line than the value before it ends: hjson needs no comma
  // between them.
  bool is_separated_by_line() const {
    if (levels_.empty() || !levels_.back().value_end ||
        std::string_view(",:}]").find(text_[at_]) != std::string_view::npos) {
      return false;
    }
    const std::size_t end = *levels_.back().value_end;
    return text_.substr(end, at_ - end).find_first_of("\r\n") != std::string_view::npos;
  }

  void separate() {
    missing_.push_back({at_, ','});
    take_comma();
  }

  void take_comma() {
    comma_.reset();
    if (levels_.empty()) return;
    if (levels_.back().value_end) comma_ = at_;
    levels_.back().value_end.reset();
    levels_.back().expects_key = levels_.back().is_object;
  }

  void end_value() {
    if (!levels_.empty()) levels_.back().value_end = at_;
  }

  void take_token() {
    const char c = text_[at_];
    if (has_ended_) return fail(at_, "something follows the end of the object; remove it");
    if (c != '}' && c != ']') comma_.reset();
    switch (c) {
      case '{':
      case '[':
        note_value();
        if (levels_.size() == kMaxDepth) {
          return fail(at_, "nested deeper than " + std::to_string(kMaxDepth) + " levels");
        }
        levels_.push_back(
            {.is_object = c == '{', .expects_key = c == '{', .value_end = {}, .keys = {}});
        ++at_;
        return;
      case '}':
      case ']':
        if (comma_) result_.json[*comma_] = ' ';
        comma_.reset();
        if (!levels_.empty()) {
          levels_.pop_back();
          has_ended_ = levels_.empty();
        }
        ++at_;
        return end_value();
      case ',':
        take_comma();
        ++at_;
        return;
      case ':':
        ++at_;
        return;
      case '"':
        return take_string();
      default:
        return take_word();
    }
  }

  void take_string() {
    const std::size_t begin = at_++;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (static_cast<unsigned char>(text_[at_]) < 0x20) {
        return fail(at_,
                    "a string cannot hold a line break or control character; is a quote missing?");
      }
      at_ += text_[at_] == '\\' ? 2 : 1;
    }
    if (at_ >= text_.size()) return fail(begin, "the string that begins here does not end");
    ++at_;
    if (levels_.empty() || !levels_.back().expects_key) return take_value(begin);
    take_key(begin, text_.substr(begin + 1, at_ - begin - 2));
  }

  void take_word() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && !ends_word(text_[at_]) && !(text_[at_] == '/' && at_ > begin)) {
      ++at_;
    }
    const std::string_view word = text_.substr(begin, at_ - begin);
    if (!levels_.empty() && levels_.back().expects_key) return take_bare_key(begin, word);
    if (word != "true" && word != "false" && word != "null" && !is_json_number(word)) {
      const bool has_zero = word.size() > 1 && is_json_number(word.substr(1)) && word[0] == '0';
      if (has_zero) return fail(begin, "a number has no zero in front");
      return fail(begin,
                  "a value is expected here: a number, true, false, null, or a string in "
                  "double quotes" +
                      (is_placeholder(word) ? "; " + std::string(word) +
                                                  " seems to be a placeholder of a template: put a "
                                                  "value in its place"
                                            : std::string()));
    }
    if (underflows(word)) return fail(begin, kTooSmall);
    take_value(begin);
  }

  void take_value(std::size_t begin) {
    note_value_at(begin);
    end_value();
  }

  // A key without quotes ends at its colon.
  void take_bare_key(std::size_t begin, std::string_view word) {
    if (!skip_space_and_comments() || text_[at_] != ':' ||
        word.find_first_of("'\\") != std::string_view::npos) {
      return fail(begin, "a key in double quotes is expected here");
    }
    take_key(begin, word);
    missing_.push_back({begin, '"'});
    missing_.push_back({begin + word.size(), '"'});
  }

  void take_key(std::size_t offset, std::string_view name) {
    Level& level = levels_.back();
    level.expects_key = false;
    level.key_offset = offset;
    if (!level.keys.insert(name).second && result_.repeated_keys.size() < kMostRepeatedKeys)
      result_.repeated_keys.push_back(offset);
  }

  void insert_missing() {
    std::string json;
    std::size_t from = 0;
    for (const Missing& missing : missing_) {
      json.append(result_.json, from, missing.offset - from);
      result_.inserted.push_back(json.size());
      json += missing.character;
      from = missing.offset;
    }
    result_.json = json + result_.json.substr(from);
  }

  void note_value() { note_value_at(at_); }
  void note_value_at(std::size_t offset) {
    if (!levels_.empty() && levels_.back().is_object) {
      result_.members.push_back({offset, levels_.back().key_offset});
    }
  }

  const std::string_view text_;
  std::size_t at_ = 0;
  std::vector<Level> levels_;
  bool has_ended_ = false;            // the outermost object or list
  std::optional<std::size_t> comma_;  // behind a value, and the last token so far
  std::vector<Missing> missing_;
  ScanResult result_;
};

}  // namespace

bool underflows(std::string_view number) {
  const std::string_view digits = number.substr(0, number.find_first_of("eE"));
  return digits.find_first_of("123456789") != std::string_view::npos &&
         std::strtod(std::string(number).c_str(), nullptr) == 0;
}

std::size_t ScanResult::original(std::size_t json_offset) const {
  const auto after = std::lower_bound(inserted.begin(), inserted.end(), json_offset);
  return json_offset - static_cast<std::size_t>(after - inserted.begin());
}

std::optional<std::size_t> ScanResult::key_offset_of(std::size_t value_offset) const {
  const auto found = std::lower_bound(
      members.begin(), members.end(), value_offset,
      [](const MemberOffsets& member, std::size_t offset) { return member.value < offset; });
  if (found == members.end() || found->value != value_offset) return std::nullopt;
  return found->key;
}

ScanResult scan_json(std::string_view text) {
  return Scanner(text).run();
}

std::optional<std::size_t> find_invalid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return std::nullopt;
}

}  // namespace sluice::config
