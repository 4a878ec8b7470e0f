#pragma once
// comms_logger: the calls over the ranks, for the report of rank 0. Thread-compatible: free
// functions without state.

#include <memory>
#include <vector>

#include "ranks/rank_group.hpp"
#include "sluice/config/train_config.hpp"
#include "sluice/train/report.hpp"
#include "sluice/zero/call_log.hpp"

namespace sluice::train {

// The log that the configuration asks for; null: none, as with one rank.
std::unique_ptr<zero::CallLog> make_call_log(const config::TrainConfig& config);

// The rows of rank 0, with the latencies of all ranks. Every rank calls it.
std::vector<ReportedCalls> gather_calls(RankGroup& ranks, const zero::CallLog& log);

}  // namespace sluice::train
