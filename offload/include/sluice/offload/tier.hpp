#pragma once
// The tiers on which bytes can live, from fastest to largest. Thread-safe: values.

#include <string_view>

namespace sluice::offload {

enum class Tier {
  device,  // memory of the compute device (GPU memory, or the host device's pool)
  pinned,  // page-locked host memory; counts in the host budget
  host,    // pageable host memory
  nvme,    // files, read and written past the page cache
};

std::string_view name_of(Tier tier);

}  // namespace sluice::offload
