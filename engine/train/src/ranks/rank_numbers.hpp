#pragma once
// The numbers of every rank for the report of rank 0. Thread-compatible: a free function without
// state.

#include "ranks/rank_group.hpp"
#include "sluice/train/report.hpp"

namespace sluice::train {

// `own` has this rank's numbers as its only row. Returns those of all ranks; none with one rank.
RankNumbers gather_numbers(RankGroup& ranks, const RankNumbers& own);

}  // namespace sluice::train
