#pragma once
// Small helpers for text that people read and write. Thread-safe: free functions without state.

#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

namespace sluice {

// `text` with its ASCII letters in lower case, in every locale.
std::string lower(std::string text);

// Whether the texts differ at most in the case of ASCII letters, in every locale.
bool equal_ignoring_case(std::string_view a, std::string_view b);

// The candidate with the smallest optimal string alignment distance (restricted
// Damerau-Levenshtein) to `name`, ignoring case. Empty when every candidate differs in more than a
// third of the longer name.
std::string nearest_name(std::string_view name, std::span<const std::string_view> candidates);

// The end of a message about a mistyped name: "; did you mean "Adam"?". Empty when `nearest` is.
std::string did_you_mean(std::string_view nearest);

// The parts with `separator` between them. Parts are texts or whole numbers.
template <typename Parts>
std::string join(const Parts& parts, std::string_view separator) {
  std::string text;
  std::string_view lead;  // empty before the first part
  for (const auto& part : parts) {
    text += lead;
    lead = separator;
    if constexpr (std::is_integral_v<std::remove_cvref_t<decltype(part)>>) {
      text += std::to_string(part);
    } else {
      text += part;
    }
  }
  return text;
}

// The number that the whole `text` is, as std::from_chars reads it: without spaces and without '+',
// in every locale. nullopt where the text is no number, or none that a T holds.
template <typename T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [stopped, problem] = std::from_chars(text.data(), end, value);
  if (problem != std::errc() || stopped != end) return std::nullopt;
  return value;
}

// A byte count with three digits and a binary unit: "1.50 GiB", "64.0 MiB", "17 B". parse_bytes
// (sluice/base/bytes.hpp) reads this form up to TiB.
std::string format_bytes(std::uint64_t size_bytes);

// A count with separators: "1,234,567".
std::string format_count(unsigned long long count);

// "1 rank", "1,024 ranks": for a noun whose plural ends in s, and a count of at least 0.
std::string counted(std::integral auto count, std::string_view noun) {
  return format_count(static_cast<unsigned long long>(count)) + " " + std::string(noun) +
         (count == 1 ? "" : "s");
}

// The shortest decimal that reads back as `value`: "0.1", "1e-08".
std::string shortest_number(double value);

// printf of one number, as the one conversion of `format` says: format_number("%.3f s", 1.5) is
// "1.500 s". A NaN is printed without a sign.
std::string format_number(const char* format, double value);

// How the columns of a table line up. `numbers_right`: the first row is the header; a column is
// right-aligned when every cell below it is empty or starts with a digit, '-' or '+'.
enum class Alignment { numbers_right, left };

// A table of `rows`, a line for each.
std::string format_table(const std::vector<std::vector<std::string>>& rows,
                         Alignment alignment = Alignment::numbers_right);

// Terminal cells that `text` takes, counted as UTF-8 code points.
std::size_t display_width(std::string_view text);

// Bytes of the valid UTF-8 sequence (RFC 3629, section 4) at the begin of `text`, which is not
// empty: 1 to 4. 0: there is none.
std::size_t utf8_length(std::string_view text);

}  // namespace sluice
