#include "files/system_files.hpp"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "sluice/base/text.hpp"

namespace sluice::cli {

std::string read_small_file(const std::string& path) {
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

std::optional<std::uint64_t> read_number(const std::string& path) {
  return parse_number<std::uint64_t>(read_small_file(path));
}

std::string field_of(const std::string& file_text, const std::string& key) {
  std::istringstream lines(file_text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, key.size(), key) != 0) continue;
    if (line.find_first_not_of(" \t", key.size()) != colon) continue;
    const std::size_t value = line.find_first_not_of(" \t", colon + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

std::uint64_t kibibytes_of(const std::string& file_text, const std::string& key) {
  return std::strtoull(field_of(file_text, key).c_str(), nullptr, 10) * 1024;
}

}  // namespace sluice::cli
