#pragma once
// Parts of the messages of writes that find no space (ENOSPC). Thread-safe: a constant and a free
// function without state.

#include <cstdint>
#include <string>

#include "sluice/base/text.hpp"
#include "sluice/nvme/file.hpp"

namespace sluice::nvme {

// Advice where bytes are free.
inline constexpr const char* kSpaceBesideBytes =
    "a quota, the room for the file system's own records, or that of a thin device below it may be "
    "used up; choose another directory";

// "3.00 MiB are free". `free_bytes`: a result of free_disk_bytes().
inline std::string what_is_free(std::uint64_t free_bytes) {
  return free_bytes == kUnknownFreeBytes ? "how much is free cannot be told"
                                         : format_bytes(free_bytes) + " are free";
}

}  // namespace sluice::nvme
