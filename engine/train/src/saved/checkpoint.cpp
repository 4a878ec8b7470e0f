#include "saved/checkpoint.hpp"

#include <exception>
#include <functional>
#include <string>

#include "saved/swap_commit.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/rank_failure.hpp"
#include "sluice/base/text.hpp"
#include "sluice/models/rank_commit.hpp"

namespace sluice::train {

namespace {

// Does a part of writing the checkpoint of `step`. One that cannot be written is no error of the
// run, unless it is strict.
void try_checkpoint(const RunResources& resources, Progress& progress, std::int64_t step,
                    const std::function<void()>& part) {
  const auto missed = [&](const std::string& why) {
    if (resources.plan.config.sluice.strict) throw;
    ++progress.missed.count;
    progress.missed.last_problem =
        "the checkpoint of step " + std::to_string(step) + " is missing: " + why;
    log(LogLevel::error, progress.missed.last_problem + "; training goes on");
  };
  try {
    part();
  } catch (...) {
    // The kind is one on all ranks, so they go on together or end together.
    const std::exception_ptr error = std::current_exception();
    if (failure_kind(error) != FailureKind::storage) throw;
    missed(failure_text(error));
  }
}

// Without a commit at the end, the last state needs a checkpoint.
bool checkpoint_is_due(const RunResources& resources, std::int64_t step, bool ending) {
  const config::CheckpointConfig& checkpoints = resources.plan.config.sluice.checkpoints;
  if (checkpoints.directory.empty()) return false;
  const bool due = checkpoints.every > 0 && step % checkpoints.every == 0;
  return due || (ending && !resources.commits_swap());
}

}  // namespace

void write_checkpoint(CheckpointWriter& writer, Progress& progress, const RunIdentity& identity,
                      const std::string& directory) {
  writer.begin(progress, identity, directory);
  writer.finish(progress);
}

bool saves_step(const RunResources& resources, std::int64_t step, bool ending) {
  return resources.commits(step, ending) || checkpoint_is_due(resources, step, ending);
}

bool saves_step_from_power_loss(const RunResources& resources, std::int64_t step, bool ending) {
  return checkpoint_is_due(resources, step, ending) ||
         (resources.commits(step, ending) &&
          resources.files.store->durability() == Durability::power);
}

void commit_step(RunResources& resources, CheckpointWriter& writer, Progress& progress,
                 const RunIdentity& identity, bool ending) {
  if (resources.commits(progress.step, ending)) {
    commit_swap(resources, make_run_state(resources.plan, progress, identity));
    progress.committed_step = progress.step;
  }
  const bool due =
      checkpoint_is_due(resources, progress.step, ending) && writer.writing() != progress.step;
  if (const auto writing = writer.writing(); writing && !due && !ending)
    try_checkpoint(resources, progress, *writing, [&] { writer.poll(progress); });
  if (due || ending) finish_checkpoint(resources, writer, progress);
  if (!due) return;
  try_checkpoint(resources, progress, progress.step, [&] {
    writer.begin(progress, identity, resources.plan.config.sluice.checkpoints.directory);
  });
  if (ending || !resources.plan.config.sluice.overlap)
    finish_checkpoint(resources, writer, progress);
}

void finish_checkpoint(const RunResources& resources, CheckpointWriter& writer,
                       Progress& progress) {
  if (const auto writing = writer.writing())
    try_checkpoint(resources, progress, *writing, [&] { writer.finish(progress); });
}

void make_up_checkpoint(const RunResources& resources, CheckpointWriter& writer, Progress& progress,
                        const RunIdentity& identity) {
  const std::string& directory = resources.plan.config.sluice.checkpoints.directory;
  if (!checkpoint_is_due(resources, progress.step, /*ending=*/true)) return;
  const std::string found = models::do_on_first(*resources.communicator, directory, [&] {
    return std::string(has_checkpoint(directory, progress.line, progress.step) ? "yes" : "no");
  });
  if (found == "yes") return;
  try_checkpoint(resources, progress, progress.step,
                 [&] { writer.begin(progress, identity, directory); });
  finish_checkpoint(resources, writer, progress);
}

std::string missed_text(const MissedCheckpoints& missed) {
  return counted(missed.count, "checkpoint") +
         " could not be written; the last: " + missed.last_problem;
}

}  // namespace sluice::train
