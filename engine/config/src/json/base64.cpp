// A configuration in base64, which DeepSpeed takes in place of a file.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "sluice/config/train_config.hpp"

namespace sluice::config {

namespace {

// RFC 4648, section 5 (url-safe); -1: no digit.
int digit_of(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '-' || c == '+') return 62;
  return c == '_' || c == '/' ? 63 : -1;
}

constexpr std::string_view kSpaces = " \t\r\n";

std::string_view without_spaces_around(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

// Empty: not all of them are digits, or their number is none of whole bytes.
std::string bytes_of(std::string_view digits) {
  if (digits.size() % 4 == 1) return "";
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : digits) {
    const int digit = digit_of(c);
    if (digit < 0) return "";
    bits = bits << 6U | static_cast<std::uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> static_cast<unsigned>(count) & 0xFFU);
  }
  return bytes;
}

// Spaces and comments may be before the object, as in a file.
bool begins_an_object(std::string_view text) {
  for (;;) {
    text.remove_prefix(std::min(text.find_first_not_of(kSpaces), text.size()));
    const bool is_line = text.starts_with('#') || text.starts_with("//");
    if (!is_line && !text.starts_with("/*")) return text.starts_with('{');
    const std::size_t end = is_line ? text.find_first_of("\r\n") : text.find("*/", 2);
    if (end == std::string_view::npos) return false;
    text.remove_prefix(end + (is_line ? 1 : 2));
  }
}

}  // namespace

std::string decoded_config(std::string_view text) {
  std::error_code ignored;
  if (std::filesystem::exists(std::filesystem::path(text), ignored)) return "";
  std::string_view digits = without_spaces_around(text);
  for (int i = 0; i < 2 && digits.ends_with('='); ++i) digits.remove_suffix(1);
  std::string bytes = bytes_of(digits);
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (bytes.starts_with(kByteOrderMark)) bytes.erase(0, kByteOrderMark.size());
  // A path decodes to bytes too, but not to an object.
  return begins_an_object(bytes) ? bytes : "";
}

}  // namespace sluice::config
