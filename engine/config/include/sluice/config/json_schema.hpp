#pragma once
// The training configuration as a JSON Schema (draft 2020-12), for editors: made from key_table(),
// which the parser follows too. It judges a file as the parser does, with these exceptions: it
// cannot tell that an unknown key at the top level resembles a known one, it does not multiply
// batch sizes, and it does not compare directories. Thread-safe: a free function without state.

#include <string>

namespace sluice::config {

std::string json_schema();

}  // namespace sluice::config
