#pragma once
// What a run reports: a record for each step (steps.jsonl) and one for the run (report.json). No
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
  std::uint64_t nvme_cached = 0;  // states that were not read, since the cache has them
};
struct LinkSeconds {
  double h2d = 0;
  double d2h = 0;
  double nvme_read = 0;
  double nvme_written = 0;
  double update = 0;   // the optimizer on the host
  double compute = 0;  // the model; as a stall: nothing waits for it
};

struct StepRecord {
  std::int64_t step = 0;  // from 1
  double loss = 0;        // mean over the step's micro-batches
  double lr = 0;
  double grad_norm = 0;  // before clipping
  std::uint64_t tokens = 0;
  double seconds = 0;
  bool skipped = false;              // gradients were not finite: no update
  std::optional<double> loss_scale;  // with fp16
  LinkBytes bytes;                   // moved for the step; not for an evaluation after it
  // These three add up to `seconds`.
  LinkSeconds stall_seconds;   // what the computing thread waited for
  double commit_seconds = 0;   // it spent committing the step before
  double compute_seconds = 0;  // the rest: the model
  std::optional<double> eval_loss;
};

// One line of steps.jsonl, without the newline. Numbers that are not finite are null; loss,
// grad_norm and eval_loss as %.17g, so that equal bits give equal text.
std::string to_json_line(const StepRecord& record);

// A drive and what the engine moved on it.
struct DriveUse {
  std::string directory;
  std::uint64_t read_bytes = 0;
  std::uint64_t written_bytes = 0;
  double busy_seconds = 0;
};

struct RunReport {
  std::uint64_t parameters = 0;
  std::uint64_t state_bytes = 0;
  plan::TierBytes budget_bytes;  // 0: not limited
  plan::TierBytes planned_bytes;
  plan::TierBytes peak_bytes;
  std::uint64_t pinned_peak_bytes = 0;
  // Of a GPU's memory: free, but not in one piece with the largest part of it.
  std::uint64_t device_gap_peak_bytes = 0;
  std::uint64_t runtime_planned_bytes = 0;
  std::uint64_t runtime_peak_bytes = 0;
  std::uint64_t rss_peak_bytes = 0;  // RssAnon + RssShmem
  double tokens_per_second = 0;
  double step_seconds = 0;  // median
  LinkSeconds
      limits_seconds;    // busy seconds per step of each link: what the step cannot be faster than
  std::string bound_by;  // the largest of them
  // By the rates that were measured for this machine and model; none: they were not.
  std::optional<plan::Prediction> predicted;
  LinkBytes planned_step_bytes;   // of a step that is committed
  LinkBytes measured_step_bytes;  // of the last step
  std::vector<DriveUse> drives;
  // Written to the swap directory by all runs in it so far, and what its drives are rated for in
  // their life; 0: no swap directory, not given.
  std::uint64_t life_written_bytes = 0;
  std::uint64_t rated_bytes = 0;
  std::optional<double> eval_loss;  // last
  std::optional<double> last_loss;
  std::optional<double> loss_scale;  // with fp16: of the step that would follow
  std::int64_t last_step = 0;
  std::int64_t committed_step = 0;
  std::vector<std::string> choices;
  std::vector<std::string> notices;  // what happened that someone should look at
  std::vector<std::pair<std::string, std::string>>
      versions;  // sluice, torch, kernel, backend, compiler
  std::string commit;
  std::string command_line;  // that began the run, quoted for a shell; may be empty
  // Set when a signal ended the run: 2 (SIGINT) or 15 (SIGTERM).
  int stopped_by_signal = 0;
};
std::string to_json(const RunReport& report);

}  // namespace sluice::train
