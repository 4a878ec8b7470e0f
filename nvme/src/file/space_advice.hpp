#pragma once
// The advice where a write finds no space (ENOSPC) although bytes are free. Thread-safe: a
// constant.

namespace sluice::nvme {

inline constexpr const char* kSpaceBesideBytes =
    "a quota, or the room for the file system's own records, may be used up; choose another "
    "directory";

}  // namespace sluice::nvme
