#pragma once
// The name of this machine, for messages, file names and the comparison of ranks. Thread-safe: a
// free function without state.

#include <string>

namespace sluice {

// As gethostname() says it, at most 255 bytes; "localhost" where it says none.
std::string host_name();

}  // namespace sluice
