#pragma once
// The version of this program. Thread-safe: a free function without state.

#include <string>

namespace sluice::cli {

// "sluice 0.1.0".
inline std::string version_text() {
  return std::string("sluice ") + SLUICE_VERSION;
}

}  // namespace sluice::cli
