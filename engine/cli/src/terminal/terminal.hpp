#pragma once
// What the output goes to, and the environment variables about it (TERM, COLUMNS, NO_COLOR, LC_ALL,
// LC_CTYPE, LANG), which are read here and nowhere else. Thread-safe: values and free functions
// without state.

#include <cstdio>
#include <string>

namespace sluice::cli {

struct TerminalFacts {
  bool is_terminal = false;  // a line can be rewritten in place
  int columns = 80;
  bool unicode = false;  // block and braille characters show
  bool colour = false;
};
TerminalFacts probe_terminal(std::FILE* stream);

}  // namespace sluice::cli
