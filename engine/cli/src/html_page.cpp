#include "html_page.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "sluice/base/error.hpp"
#include "sluice/base/fd.hpp"
#include "sluice/nvme/bench_file.hpp"
#include "sluice/offload/swap_directory.hpp"
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
  if (file) return;
  const int error_number = errno != 0 ? errno : EIO;
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) std::filesystem::remove(path, ignored);
  throw IoError(error_number, "write", path);
}

namespace {

// Also by another name, and also when the file is not there yet.
bool is_measured(const std::string& path, const std::string& measured) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  for (const fs::path& file : {fs::path(measured), fs::path(measured) / nvme::kBenchFileName}) {
    if (fs::equivalent(path, file, ignored)) return true;
    if (fs::weakly_canonical(fs::absolute(path), ignored) ==
        fs::weakly_canonical(fs::absolute(file), ignored))
      return true;
  }
  return false;
}

}  // namespace

void check_writable(const std::string& flag, const std::string& path,
                    const std::vector<std::string>& measured) {
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  SLUICE_CHECK(!exists || !S_ISDIR(status.st_mode), flag + ": " + path + ": this is a directory");
  if (exists && !S_ISREG(status.st_mode)) return;  // the opening of a pipe would be noticed
  for (const std::string& of : measured)
    SLUICE_CHECK(!is_measured(path, of), flag + ": " + path + ": is the file that is measured");
  SLUICE_CHECK(!offload::is_run_file(path),
               flag + ": " + path + ": is part of a training run, and would be replaced");
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (!fd) throw IoError(errno, "open", path, 0, 0, "given as " + flag);
  if (!exists) ::unlink(path.c_str());
}

}  // namespace sluice::cli
