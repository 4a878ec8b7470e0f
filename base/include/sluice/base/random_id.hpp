#pragma once
// random_id(): names for what is stored. Thread-safe: a free function without state.

#include <string>

namespace sluice {

// An id for something that is stored: 16 random hexadecimal digits, from the system's source.
std::string random_id();

}  // namespace sluice
