#pragma once
// Everything that all ranks of a run must have alike, compared at the start: files, settings,
// program. A run of ranks that differ would train something that nobody asked for, or stand still.
// Thread-compatible: free functions without state.

#include <string>
#include <vector>

#include "ranks/rank_group.hpp"

namespace sluice::train {

struct Input {
  std::string name;  // for people, with the flag: "model (--model)"
  std::string text;  // equal on all ranks
};

// Compares the inputs of a run over the ranks, by a hash of each. Throws one line that names the
// first rank that differs from rank 0, and the input (RankGroup::refuse()).
void require_same_inputs(RankGroup& ranks, const std::vector<Input>& inputs);

// The bytes of a file, for an Input; the path itself where it is no regular file.
std::string text_of_file(const std::string& path);

}  // namespace sluice::train
