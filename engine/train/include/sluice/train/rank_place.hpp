#pragma once
// RankPlace: the place of this process among the ranks that train one model. No LibTorch.
// Thread-safe: a value.

#include <string>

namespace sluice::train {

struct RankPlace {
  int rank = 0;        // below `size`
  int size = 1;        // ranks of the run
  int local_rank = 0;  // among the ranks of this host, below `local_size`
  int local_size = 1;
  std::string launcher;  // that started the ranks: "Open MPI", "torchrun"; empty: none
};

}  // namespace sluice::train
