#pragma once
// Communicators of ranks that are threads of the test. Thread-safe: a free function without state.

#include <cstddef>
#include <utility>
#include <vector>

#include "sluice/zero/communicator.hpp"
#include "sluice/zero/ranks.hpp"

namespace sluice::test {

// Element r is rank r's.
inline std::vector<zero::Ranks> make_thread_ranks(int world_size) {
  auto compute = zero::make_thread_communicators(world_size);
  auto gather = zero::make_thread_communicators(world_size);
  auto control = zero::make_thread_communicators(world_size);
  std::vector<zero::Ranks> all;
  for (std::size_t rank = 0; rank < compute.size(); ++rank)
    all.push_back({std::move(compute[rank]), std::move(gather[rank]), std::move(control[rank])});
  return all;
}

}  // namespace sluice::test
