#pragma once
// How often a test repeats what ends at a random moment, and how many steps it trains.

#include <cstdlib>

namespace sluice::test {

// `deep` where the variable SLUICE_DEEP is set, as scripts/test_all.sh does it.
inline int usual_or_deep(int usual, int deep) {
  return std::getenv("SLUICE_DEEP") != nullptr ? deep : usual;
}

}  // namespace sluice::test
