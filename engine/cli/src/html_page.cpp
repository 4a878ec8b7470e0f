#include "html_page.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "sluice/base/error.hpp"
#include "sluice/base/fd.hpp"
#include "text_format.hpp"

namespace sluice::cli {

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : valid_utf8(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string html_begin(std::string_view title) {
  return "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
         "<meta name=\"viewport\" content=\"width=device-width\"><title>" +
         escape_html(title) +
         "</title>\n<style>body{font:15px/1.5 system-ui,sans-serif;max-width:54rem;margin:2rem "
         "auto;padding:0 1rem;color:#1f2937;background:#fff}h1{font-size:1.3rem}"
         "h2{font-size:1.05rem}code,pre{background:#f3f4f6;padding:.1rem .3rem}pre{padding:.6rem}"
         "table{border-collapse:collapse;margin:1rem 0}th,td{padding:.25rem .7rem;"
         "text-align:right;border-bottom:1px solid #e5e7eb}"
         "th:first-child,td:first-child{text-align:left}"
         "svg{width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:#6b7280}"
         ".grid{stroke:#e5e7eb}</style></head><body>\n";
}

std::string html_end() {
  return "</body></html>\n";
}

std::string html_row(const std::vector<std::string>& cells, const char* tag) {
  std::string out = "<tr>";
  for (const std::string& cell : cells)
    out += "<" + std::string(tag) + ">" + escape_html(cell) + "</" + tag + ">";
  return out + "</tr>\n";
}

std::string svg_number(double value) {
  return format_number("%.1f", value);
}

void write_page(const std::string& path, const std::string& page) {
  errno = 0;
  std::ofstream file(path, std::ios::trunc);
  file << page;
  file.close();
  if (!file) throw IoError(errno != 0 ? errno : EIO, "write", path);
}

void check_writable(const std::string& flag, const std::string& path) {
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  SLUICE_CHECK(!exists || !S_ISDIR(status.st_mode), flag + ": " + path + ": this is a directory");
  if (exists && !S_ISREG(status.st_mode)) return;  // the opening of a pipe would be noticed
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (!fd) throw IoError(errno, "open", path, 0, 0, "given as " + flag);
  if (!exists) ::unlink(path.c_str());
}

}  // namespace sluice::cli
