#pragma once
// Whole files as text. Thread-safe: free functions without state.

#include <fstream>
#include <iterator>
#include <string>

namespace sluice::test {

// Empty for a file that cannot be read.
inline std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace sluice::test
