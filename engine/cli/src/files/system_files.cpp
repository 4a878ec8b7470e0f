#include "files/system_files.hpp"

#include <fstream>
#include <iterator>

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

}  // namespace sluice::cli
