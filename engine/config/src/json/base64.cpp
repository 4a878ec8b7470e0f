// A configuration in base64, which DeepSpeed takes in place of a file.
#include <cstdint>
#include <filesystem>
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

}  // namespace

std::string decoded_config(std::string_view text) {
  if (text.size() < 4 || text.size() % 4 != 0) return "";
  std::error_code ignored;
  if (std::filesystem::exists(std::filesystem::path(text), ignored)) return "";
  std::size_t padding = 0;
  while (padding < 2 && text[text.size() - 1 - padding] == '=') ++padding;
  std::string out;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text.substr(0, text.size() - padding)) {
    const int digit = digit_of(c);
    if (digit < 0) return "";
    bits = bits << 6U | static_cast<std::uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out += static_cast<char>(bits >> static_cast<unsigned>(count) & 0xFFU);
  }
  // A path decodes to bytes too, but not to an object.
  const std::size_t first = out.find_first_not_of(" \t\r\n");
  return first != std::string::npos && out[first] == '{' ? out : "";
}

}  // namespace sluice::config
