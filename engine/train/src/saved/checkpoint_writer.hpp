#pragma once
// CheckpointWriter: writes full checkpoints on a thread of its own while steps go on.
//
//   begin()   makes the draft, and begins to copy the states of every unit. Each unit's next update
//             waits for its copy alone: a copy in host memory (StateCopies), or where the plan has
//             no room for one, the write itself
//   thread    writes the copies, syncs the draft; with one rank, gives it its name too
//   poll()    after each step: takes note of a checkpoint that is whole. With several ranks, all
//             look together, and rank 0 gives the draft its name
//
// One checkpoint at a time. Killed at any moment, the older checkpoints are whole: a draft is
// renamed when it is synced, and only then older ones are removed.
//
// Confined to the thread that trains. With several ranks, all of them make the same calls, while
// nothing else uses RunResources::communicator.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "saved/saved_state.hpp"
#include "sluice/base/ticket.hpp"
#include "sluice/base/trace.hpp"
#include "sluice/base/worker.hpp"
#include "sluice/models/checkpoints.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "step/run_resources.hpp"

namespace sluice::train {

class CheckpointWriter {
 public:
  // Makes the I/O engine of one checkpoint, on the writer's thread.
  using MakeIo = std::function<std::unique_ptr<nvme::IoEngine>()>;

  // `resources` outlives the writer. `make_io` empty: an engine as the run's own.
  explicit CheckpointWriter(RunResources& resources, MakeIo make_io = {});
  // Blocks until the thread has ended. With one rank, a checkpoint that is being written becomes
  // whole; an error is a line in the log. The draft of several ranks stays for the next run, which
  // removes it.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // The step whose checkpoint is being written. Empty: none is.
  std::optional<std::int64_t> writing() const;

  // Begins the checkpoint DIRECTORY/step-NNNNNNNN of `progress.step`, whose updates have ended;
  // none is being written. Raises progress.order above the line's checkpoints in `directory`, which
  // the caller holds by its lock. Waits for the creation of files only where a unit has no room for
  // a copy. Throws IoError, StorageError, also when that lock was removed; then all checkpoints are
  // unchanged.
  void begin(Progress& progress, const RunIdentity& identity, const std::string& directory);
  // If the checkpoint is whole on all ranks: as finish(). Does not wait for a drive, except on rank
  // 0 of several, which removes older checkpoints.
  void poll(Progress& progress);
  // Waits until the checkpoint has its name, if one is being written, and notes it in `progress`.
  // Checkpoints of other lines are kept; when one of them has the name, the folder is
  // step-NNNNNNNN.2. Throws IoError, StorageError; then all checkpoints are unchanged, and the
  // draft is gone.
  void finish(Progress& progress);

 private:
  struct Job;

  void begin_copies(Job& job);
  void write(Job& job) const;
  void write_copy(Job& job, std::size_t unit) const;
  std::string publish_together(const Job& job);

  RunResources& resources_;
  const MakeIo make_io_;
  const TraceRow row_;
  models::KnownCheckpoints known_;  // of the directory, when the last checkpoint began
  std::unique_ptr<Job> job_;        // null: nothing is being written
  Ticket written_;                  // of the thread's work on it
  std::unique_ptr<Worker> worker_;  // null before the first checkpoint
};

}  // namespace sluice::train
