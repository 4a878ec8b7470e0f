#pragma once
// Addresses that read as NaN in every type of weights, and take almost no memory: a few pages,
// mapped as often as it takes. Not installed. Thread-safe.

#include <cstdint>
#include <memory>

namespace sluice::train {

// `size_bytes` from the pointer on, until the last copy of it is gone. A write stays in that place,
// in memory of its own. Throws IoError.
std::shared_ptr<void> make_nan_pages(std::uint64_t size_bytes);

}  // namespace sluice::train
