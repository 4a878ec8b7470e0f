#pragma once
// The machine as the planner of one rank sees it, where several ranks train one model. The ranks of
// a host share its memory, cores, locked memory and free disk space in equal parts. All ranks plan
// with the facts of the poorest one, so that all make the same plan.
// Thread-compatible: free functions without state.

#include "ranks/rank_group.hpp"
#include "sluice/config/train_config.hpp"
#include "sluice/plan/machine.hpp"
#include "sluice/plan/plan.hpp"

namespace sluice::train {

// This rank's share of what its host has; with one rank, all of it. Throws InvalidArgument when the
// device of several ranks is a GPU: they need a communicator over device memory.
plan::MachineFacts share_of_host(plan::MachineFacts facts, const RankPlace& place);
// The least of the ranks' shares of their hosts. Throws as share_of_host() and probe_machine().
plan::MachineFacts shared_facts(RankGroup& ranks, const config::TrainConfig& config);

// Throws InvalidArgument on rank 0, RankFailure on the others, when the ranks have different plans.
void require_same_plan(RankGroup& ranks, const plan::Plan& plan);

}  // namespace sluice::train
