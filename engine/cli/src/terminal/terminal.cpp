#include "terminal/terminal.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "sluice/base/text.hpp"

namespace sluice::cli {

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Without any locale variable (containers, services) the reader almost always takes UTF-8. A locale
// that is set, "C" included, decides.
bool locale_takes_unicode() {
  std::string locale;
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    locale = variable(name);
    if (!locale.empty()) break;
  }
  if (locale.empty()) return true;
  locale = lower(locale);
  return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
}

// Open MPI gives its processes a terminal of their own, wherever its own output goes.
bool is_shown(int fd) {
  if (::isatty(fd) != 1) return false;
  if (variable("OMPI_COMM_WORLD_SIZE").empty()) return true;
  std::error_code unknown;
  const std::string shown = std::filesystem::read_symlink(
      "/proc/" + std::to_string(::getppid()) + "/fd/" + std::to_string(fd), unknown);
  return shown.starts_with("/dev/pts/") || shown.starts_with("/dev/tty");
}

}  // namespace

TerminalFacts probe_terminal(std::FILE* stream) {
  constexpr int kNarrowest = 40;
  constexpr int kWidest = 160;  // a longer line is hard to read
  const int fd = ::fileno(stream);
  const std::string term = variable("TERM");
  TerminalFacts facts;
  facts.is_terminal = is_shown(fd) && term != "dumb";
  facts.unicode = locale_takes_unicode() && term != "linux";  // the kernel's console has no braille
  if (const auto columns = columns_now(stream); facts.is_terminal && columns) {
    facts.columns = *columns;
  } else if (const int asked = std::atoi(variable("COLUMNS").c_str()); asked > 0) {
    facts.columns = asked;
  }
  facts.columns = std::clamp(facts.columns, kNarrowest, kWidest);
  return facts;
}

std::optional<int> columns_now(std::FILE* stream) {
  winsize size = {};
  if (::ioctl(::fileno(stream), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return std::nullopt;
  return size.ws_col;
}

}  // namespace sluice::cli
