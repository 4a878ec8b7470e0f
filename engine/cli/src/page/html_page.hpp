#pragma once
// Pieces of the pages that commands write: self-contained, no script, no request to anywhere.
// Thread-safe: free functions without state.

#include <string>
#include <string_view>
#include <vector>

namespace sluice::cli {

std::string escape_html(std::string_view text);
// The page from the doctype to the beginning of the body, with the style that all pages share.
std::string html_begin(std::string_view title);
std::string html_end();
// A row of a table; `tag` is "td" or "th".
std::string html_row(const std::vector<std::string>& cells, const char* tag);
// A bar for a table cell, filled up to the share `part`, with a line at each share in `edges`.
std::string html_gauge(double part, int colour, const std::vector<double>& edges);
// A coordinate in a drawing, with one decimal.
std::string svg_number(double value);

// check_writable() for a page: an older page may be replaced, and an empty file, but nothing else.
// Throws InvalidArgument, IoError.
void check_page_path(const std::string& flag, const std::string& path,
                     const std::vector<std::string>& inputs,
                     const std::string& what_inputs_are = "the file that is measured");

}  // namespace sluice::cli
