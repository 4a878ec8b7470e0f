#pragma once
// The machine as the planner of one rank sees it, where several ranks train one model. The ranks of
// a host share its memory, cores, locked memory, free disk space and GPUs in equal parts. All ranks
// plan with the facts of the poorest one, so that all make the same plan.
// Thread-compatible: free functions without state.

#include "ranks/rank_group.hpp"
#include "sluice/config/train_config.hpp"
#include "sluice/plan/machine.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/zero/communicator.hpp"

namespace sluice::train {

// The GPU of this rank: the ranks of a host take its GPUs in turn, unless `asked` names one.
config::ComputeDevice device_of_rank(const config::ComputeDevice& asked, const RankPlace& place);

// This rank's share of what its host has, but for a GPU; with one rank, all of it.
plan::MachineFacts share_of_host(plan::MachineFacts facts, const RankPlace& place);
// The GPU's free memory, divided by the ranks that compute on it; sets GpuFacts::ranks. All ranks
// call it, those without a GPU too. Blocks.
void share_gpu(plan::MachineFacts& facts, zero::Communicator& ranks);

// The least of the ranks' shares, in every number that a plan follows from. All ranks call it.
// Blocks. Throws InvalidArgument, on all ranks, where one has a GPU or a directory and another has
// none.
void take_least(plan::MachineFacts& facts, zero::Communicator& ranks);

// The least of the ranks' shares of their hosts, and how ranks exchange the memory of their GPUs.
// Throws as probe_machine() does, and InvalidArgument where "strict" does not allow host memory for
// that exchange, or where some ranks have a GPU and others have none.
plan::MachineFacts shared_facts(RankGroup& ranks, const config::TrainConfig& config);

// The most that any rank measured: all ranks plan with it.
models::UnitWorkspaces largest_workspaces(RankGroup& ranks, const models::UnitWorkspaces& mine);

// Throws InvalidArgument on rank 0, RankFailure on the others, when the ranks have different plans.
void require_same_plan(RankGroup& ranks, const plan::Plan& plan);
// As above, but throws InvalidArgument on all ranks.
void require_same_plan(zero::Communicator& ranks, const plan::Plan& plan);

}  // namespace sluice::train
