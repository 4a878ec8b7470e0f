#pragma once
// Formats of numbers for the commands, and text for shells. Thread-safe: free functions without
// state.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/base/text.hpp"  // format_number

namespace sluice::cli {

// Decimal GB/s with two digits, "3.07"; without the unit.
std::string format_gigabytes(double bytes_per_second);
// "42s", "7m42s", "3h05m", "2d04h"; "?" when not finite or negative.
std::string format_duration(double seconds);
// "1,043 tok/s", "12.3 tok/s".
std::string format_rate(double per_second, const std::string& unit);

// Replaces every byte that is not part of valid UTF-8 by U+FFFD, as JSON needs.
std::string valid_utf8(std::string_view text);

// For a message that repeats what a user or a file gave: control characters, which a terminal would
// obey, are shown as "\\x1b", and of a line of more than 2,000 bytes the first are kept, with the
// number of those left out. Lines stay lines.
std::string printable(std::string_view text);

// The argument as typed into a POSIX shell: plain text unchanged, other text in single quotes.
std::string shell_quote(const std::string& argument);
// A whole command line, each argument quoted where needed.
std::string shell_line(const std::vector<std::string>& arguments);

// The first `columns` characters of valid UTF-8.
std::string_view cut_to_width(std::string_view text, std::size_t columns);
// Breaks at spaces so that no line is longer than `columns`; a longer word stays whole.
std::vector<std::string> wrap(const std::string& text, std::size_t columns);
// Breaks the lines of `text` that are longer than `columns`, and indents what follows. A line with
// two spaces side by side is of a table: only words of its last cell go on below the cell. A line
// with two spaces at its begin alone is a command to be copied, and stays. `columns`: at least 20.
std::string wrap_sentences(std::string_view text, std::size_t columns);

}  // namespace sluice::cli
