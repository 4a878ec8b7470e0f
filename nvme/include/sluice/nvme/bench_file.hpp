#pragma once
// The file that measurements of a drive leave in a directory, to be used again by the next one.
// Whoever writes it and whoever clears it away agree on the name here.

#include <string_view>

namespace sluice::nvme {

inline constexpr std::string_view kBenchFileName = "bench.sluice";

}  // namespace sluice::nvme
