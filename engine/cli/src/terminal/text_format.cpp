#include "terminal/text_format.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <utility>

namespace sluice::cli {

std::string format_gigabytes(double bytes_per_second) {
  return format_number("%.2f", 1e-9 * bytes_per_second);
}

std::string format_duration(double seconds) {
  constexpr double kLongest = 1e9;  // thirty years; a longer duration says nothing
  if (!std::isfinite(seconds) || seconds < 0 || seconds > kLongest) return "?";
  const auto whole = static_cast<long long>(std::llround(seconds));
  const auto pair = [](long long major, char major_unit, long long minor, char minor_unit) {
    char text[48];
    std::snprintf(text, sizeof(text), "%lld%c%02lld%c", major, major_unit, minor, minor_unit);
    return std::string(text);
  };
  if (whole < 60) return std::to_string(whole) + "s";
  if (whole < 3600) return pair(whole / 60, 'm', whole % 60, 's');
  if (whole < 86400) return pair(whole / 3600, 'h', whole % 3600 / 60, 'm');
  return pair(whole / 86400, 'd', whole % 86400 / 3600, 'h');
}

std::string format_rate(double per_second, const std::string& unit) {
  if (!std::isfinite(per_second) || per_second < 0) return "? " + unit;
  const std::string number =
      per_second < 100 ? format_number("%.1f", per_second)
                       : format_count(static_cast<unsigned long long>(std::llround(per_second)));
  return number + " " + unit;
}

namespace {

// C0 but tabs, DEL, and C1 (U+0080 to U+009F, of which U+009B begins an escape sequence). The last
// byte of C1's UTF-8 is its code.
bool is_control(std::string_view character) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return (byte(0) < 0x20 && byte(0) != '\t') || byte(0) == 0x7F;
  return character.size() == 2 && byte(0) == 0xC2 && byte(1) < 0xA0;
}

}  // namespace

std::string valid_utf8(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    out += length == 0 ? std::string_view("\xEF\xBF\xBD") : text.substr(0, length);
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

std::string printable(std::string_view text) {
  constexpr std::size_t kMostBytes = 2000;
  std::string out;
  while (!text.empty()) {
    const std::size_t line_end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, line_end);
    std::string_view rest = line;
    while (!rest.empty() && line.size() - rest.size() < kMostBytes) {
      const std::size_t length = utf8_length(rest);
      if (length == 0) {
        out += "\xEF\xBF\xBD";
      } else if (is_control(rest.substr(0, length))) {
        char escape[8];
        const auto code = static_cast<unsigned char>(rest[length - 1]);
        std::snprintf(escape, sizeof(escape), "\\x%02x", code);
        out += escape;
      } else {
        out += rest.substr(0, length);
      }
      rest.remove_prefix(std::max<std::size_t>(1, length));
    }
    if (!rest.empty()) out += "... (" + format_count(rest.size()) + " more bytes)";
    if (line_end < text.size()) out += '\n';
    text.remove_prefix(std::min(line_end + 1, text.size()));
  }
  return out;
}

std::vector<std::string> wrap(const std::string& text, std::size_t columns) {
  std::vector<std::string> lines;
  std::string line;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (!line.empty() && line.size() + 1 + word.size() > columns)
      lines.push_back(std::exchange(line, ""));
    line += (line.empty() ? "" : " ") + word;
    at = end + 1;
  }
  if (!line.empty()) lines.push_back(line);
  return lines;
}

namespace {

// A row of a table that is longer than `columns`: words in its last cell go on below the cell's
// begin, where the columns before it leave a third of the width. A line of one cell behind two
// spaces is a command.
std::string wrap_last_cell(const std::string& row, std::size_t columns) {
  const std::size_t begin = row.rfind("  ") + 2;
  const std::size_t indent = display_width(row.substr(0, begin));
  const bool is_command = begin == 2;
  if (is_command || indent > columns * 2 / 3) return row;
  return row.substr(0, begin) +
         join(wrap(row.substr(begin), columns - indent), "\n" + std::string(indent, ' '));
}

}  // namespace

std::string wrap_sentences(std::string_view text, std::size_t columns) {
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string line(text.substr(0, end));
    if (display_width(line) <= columns) {
      out += line;
    } else if (line.find("  ") != std::string::npos) {
      out += wrap_last_cell(line, columns);
    } else {
      out += join(wrap(line, columns - 2), "\n  ");
    }
    if (end < text.size()) out += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::string_view cut_to_width(std::string_view text, std::size_t columns) {
  std::size_t end = 0;
  for (std::size_t shown = 0; end < text.size(); ++end) {
    const bool begins = (static_cast<unsigned char>(text[end]) & 0xC0U) != 0x80U;
    if (begins && shown++ == columns) break;
  }
  return text.substr(0, end);
}

std::string shell_quote(const std::string& argument) {
  const bool plain = !argument.empty() && std::all_of(argument.begin(), argument.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("-_./=:,@%+").find(c) != std::string_view::npos;
  });
  if (plain) return argument;
  std::string quoted = "'";
  for (const char c : argument) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::string shell_line(const std::vector<std::string>& arguments) {
  std::string line;
  for (const std::string& argument : arguments)
    line += (line.empty() ? "" : " ") + shell_quote(argument);
  return line;
}

}  // namespace sluice::cli
