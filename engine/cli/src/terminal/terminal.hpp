#pragma once
// Facts about the terminal. The environment variables TERM, COLUMNS, LC_ALL, LC_CTYPE and LANG
// are read here and nowhere else. Thread-safe: values and free functions without state.

#include <cstdio>
#include <optional>
#include <string>

namespace sluice::cli {

struct TerminalFacts {
  bool is_terminal = false;  // a line can be rewritten in place
  int columns = 80;
  bool unicode = false;  // block and braille characters are shown
};
TerminalFacts probe_terminal(std::FILE* stream);
// The terminal's width at this moment, however small; nothing when the stream does not know one.
std::optional<int> columns_now(std::FILE* stream);

}  // namespace sluice::cli
