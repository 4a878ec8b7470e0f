#pragma once
// Bytes by tier, and one row of the plan's table. Thread-safe: values.

#include <cstdint>
#include <string>

namespace sluice::plan {

// Bytes on each tier.
struct TierBytes {
  std::uint64_t device = 0;
  std::uint64_t host = 0;  // includes pinned memory
  std::uint64_t nvme = 0;
};

// One row of the plan's table.
struct PlanRow {
  std::string component;  // "weights", "gathered units", "update tiles", ...
  std::string note;       // how the bytes come about: "2 x 25.2 MiB"
  TierBytes bytes;
};

}  // namespace sluice::plan
