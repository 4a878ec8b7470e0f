#pragma once
// The reports of a run: a record for each step (steps.jsonl) and one for the run (report.json). No
// LibTorch. Thread-safe: values and free functions without state.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sluice/plan/prediction.hpp"
#include "sluice/plan/tier_bytes.hpp"

namespace sluice::train {

// The links that bytes move over.
struct LinkBytes {
  std::uint64_t h2d = 0;
  std::uint64_t d2h = 0;
  std::uint64_t nvme_read = 0;
  std::uint64_t nvme_written = 0;
  std::uint64_t nvme_cached = 0;  // states that the cache served without a read
  std::uint64_t network = 0;      // sent to other ranks
};
struct LinkSeconds {
  double h2d = 0;
  double d2h = 0;
  double nvme_read = 0;
  double nvme_written = 0;
  double update = 0;   // the optimizer on the cores; a GPU's part is not counted
  double compute = 0;  // the model; 0 as a stall
  double network = 0;  // calls over the ranks, with their waits for other ranks
};

// Parts of a step that DeepSpeed's breakdowns show.
struct StepParts {
  // The computing thread in forward, and in backward with the last unit's forward. On a GPU they
  // are times of issuing, unless wall_clock_breakdown is on.
  double forward_seconds = 0;
  double backward_seconds = 0;
  // Device memory after the step.
  std::uint64_t device_bytes = 0;
  std::uint64_t device_peak_bytes = 0;  // since the run began
  std::uint64_t device_held_bytes = 0;  // in use, or kept for later
};

struct StepRecord {
  std::int64_t step = 0;  // from 1
  double loss = 0;        // mean over the step's micro-batches and ranks
  double lr = 0;
  double grad_norm = 0;  // before clipping
  std::uint64_t tokens = 0;
  double seconds = 0;
  bool skipped = false;              // the loss or a gradient was non-finite: no update
  bool loss_is_known = true;         // false: a loop of the user's own told of none
  std::optional<double> loss_scale;  // with fp16
  LinkBytes bytes;                   // moved for the step, without an evaluation after it
  // These three add up to `seconds`.
  LinkSeconds stall_seconds;   // waits of the computing thread, by link
  double commit_seconds = 0;   // committing the step before
  double compute_seconds = 0;  // the rest: the model
  std::optional<double> eval_loss;
  int ranks = 1;    // the run's ranks; the record is rank 0's
  StepParts parts;  // not in steps.jsonl

  // The seconds outside of forward and backward: waits for updates, and commits.
  double step_seconds() const { return seconds - parts.forward_seconds - parts.backward_seconds; }
};

// One line of steps.jsonl, without the newline. Numbers that are not finite are null; loss,
// grad_norm and eval_loss as %.17g, so that equal bits give equal text.
std::string to_json_line(const StepRecord& record);

// A drive and the bytes that the engine moved on it.
struct DriveUse {
  std::string directory;
  std::uint64_t read_bytes = 0;
  std::uint64_t written_bytes = 0;
  double busy_seconds = 0;
};

// Bytes that the plan allowed and the run took, by tier.
struct ReportedMemory {
  plan::TierBytes budget;  // 0: not limited
  plan::TierBytes planned;
  plan::TierBytes peak;
  std::uint64_t pinned_peak_bytes = 0;
  // Free memory of a GPU outside the largest free piece of its arena.
  std::uint64_t device_gap_peak_bytes = 0;
  // LibTorch, oneDNN and the program itself, outside the tiers.
  std::uint64_t runtime_planned_bytes = 0;
  std::uint64_t runtime_peak_bytes = 0;
  std::uint64_t rss_peak_bytes = 0;  // RssAnon + RssShmem
};

// Seconds from the call that trains to the first step.
struct StartSeconds {
  double plan = 0;    // reading the files, and planning
  double memory = 0;  // taking memory, and opening the files of the drives
  double states = 0;  // initial weights, or the states that the run continues from
};

// Updates of units that began before the norm was known.
struct ReportedSpeculation {
  std::uint64_t kept = 0;
  std::uint64_t dropped = 0;   // done again with another factor, or the step was skipped
  double dropped_seconds = 0;  // that threads computed for these
};

struct ReportedSpeed {
  double tokens_per_second = 0;
  double step_seconds = 0;  // median of the last 4096 steps
  // Busy seconds per step of each link, the median of the last 512 steps: a step cannot be faster
  // than the largest.
  LinkSeconds limits;
  std::string bound_by;  // the link with the largest limit
  // Bytes that a step's updates read and write in memory: states, gradients and weights.
  std::uint64_t update_bytes = 0;
  double update_share_of_gpu = 0;  // of the elements that the run updated
  ReportedSpeculation speculation;
  StartSeconds start;
  // By the measured rates of this machine and model; empty: there are none.
  std::optional<plan::Prediction> predicted;
};

struct ReportedTraffic {
  LinkBytes planned_step;   // bytes of a step that is committed
  LinkBytes measured_step;  // bytes of the last step
  std::vector<DriveUse> drives;
  // Written to the swap directory by all runs in it so far; 0: no swap directory.
  std::uint64_t life_written_bytes = 0;
  std::uint64_t rated_bytes = 0;  // endurance of its drives; 0: not given
};

struct ReportedLosses {
  std::optional<double> last;        // the last step's
  std::optional<double> evaluation;  // the last evaluation's
  std::optional<double> loss_scale;  // with fp16: the scale of the step that would follow
};

// Numbers of every rank, each of one meaning: "step_seconds", "busy_seconds.update".
struct RankNumbers {
  std::vector<std::string> names;
  std::vector<std::vector<double>> by_rank;  // each as long as `names`; empty: one rank
};

// Calls over the ranks of one operation and size, with comms_logger.
struct ReportedCalls {
  std::string operation;
  std::string label;  // what for; empty without comms_logger.debug
  std::uint64_t message_bytes = 0;
  std::uint64_t calls = 0;           // of rank 0
  double seconds = 0;                // of rank 0, all calls
  std::vector<double> mean_seconds;  // of a call, by rank, without the ranks that made none
  // 1e9 bits per second of rank 0, at its mean latency.
  double algorithm_gbps = 0;
  double bus_gbps = 0;
};

struct RunReport {
  std::uint64_t parameters = 0;
  std::uint64_t state_bytes = 0;
  ReportedMemory memory;
  ReportedSpeed speed;
  ReportedTraffic traffic;
  ReportedLosses losses;
  RankNumbers ranks;
  std::vector<ReportedCalls> calls;  // empty without comms_logger
  std::int64_t steps = 0;            // of this run: a resumed one begins after the steps before it
  std::int64_t last_step = 0;
  std::int64_t committed_step = 0;
  std::int64_t skipped_steps = 0;       // of this run, whose gradients were not finite
  std::int64_t missed_checkpoints = 0;  // that could not be written; a notice says why
  std::vector<std::string> choices;
  std::vector<std::string> notices;  // events that a person should look at
  // Name and version of sluice, LibTorch, kernel, backend, compiler.
  std::vector<std::pair<std::string, std::string>> versions;
  std::string commit;
  std::string command_line;  // that began the run, quoted for a shell; may be empty
  // The signal that ended the run: 1 (SIGHUP), 2 (SIGINT), 10 (SIGUSR1), 13 (SIGPIPE) or 15
  // (SIGTERM); 0: none.
  int stopped_by_signal = 0;
};
// One JSON object, report.json. Its keys are those of docs/cli.md.
std::string to_json(const RunReport& report);

}  // namespace sluice::train
