#pragma once
// Key paths: names of keys with dots between them, "zero_optimization.stage". Thread-safe: free
// functions without state.

#include <string>
#include <string_view>

namespace sluice::config {

// The path of the key `name` in the section `parent`, which is empty at the top level.
inline std::string path_of(std::string_view parent, std::string_view name) {
  return std::string(parent) + (parent.empty() ? "" : ".") + std::string(name);
}

// The section of a key; empty at the top level.
inline std::string parent_of(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return std::string(path.substr(0, dot == std::string_view::npos ? 0 : dot));
}

// The last name of a path.
inline std::string_view name_in(std::string_view path) {
  return path.substr(path.rfind('.') + 1);
}

// Whether the name is that of a list's element.
inline bool is_index(std::string_view name) {
  return !name.empty() && name.size() < 3 &&
         name.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace sluice::config
