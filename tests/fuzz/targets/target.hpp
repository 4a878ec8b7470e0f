#pragma once
// Shared by the fuzz targets: the bytes of the input as text and as a file, and the errors that a
// damaged file may lead to. Any other exception ends the run.
//
// Confined to one thread.

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

#include "sluice/base/error.hpp"
#include "temp_dir.hpp"

namespace sluice::fuzz {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size_bytes) {
  return {reinterpret_cast<const char*>(data), size_bytes};
}

// A file that is read or refused, never more.
template <typename Read>
void read_or_refuse(const Read& read) {
  try {
    read();
  } catch (const Error&) {
  } catch (const IoError&) {
  }
}

// The folder of the inputs of this process.
inline const test::TempDir& folder() {
  static const test::TempDir dir;
  return dir;
}

inline std::string write_input(const std::string& name, std::string_view bytes) {
  std::string path = folder().file(name);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes;
  file.close();
  if (!file) throw std::runtime_error(path + " cannot be written");
  return path;
}

}  // namespace sluice::fuzz
