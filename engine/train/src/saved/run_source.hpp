#pragma once
// Where a run continues from: nothing, its own swap directory, or a checkpoint, written by any
// number of ranks. Functions with a communicator are called by all its ranks. Rank 0 looks and
// decides, and locks what is of all ranks; the others hear it.

#include <optional>
#include <string>
#include <vector>

#include "sluice/config/train_config.hpp"
#include "sluice/models/saved_state.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/zero/communicator.hpp"

namespace sluice::train {

struct RunSource {
  std::string directory;  // empty: a new run
  bool own_swap = false;  // the directory is the run's swap directory, with as many ranks as now
  // The run's swap directory holds a state of as many ranks as now, this one or an earlier one: the
  // store is opened, not created.
  bool swap_committed = false;
  bool in_swap_directory = false;  // the directory is the run's, with any number of ranks
  // The swap directory holds a state, of as many ranks as now or of others, which are only read.
  bool swap_holds_state = false;
  std::optional<models::RunState> state;
  std::string metadata;                  // the text that `state` was read from
  std::vector<models::SavedPart> parts;  // one for each rank that wrote it
  std::string older;  // another checkpoint of this state or of one before; empty: none is known
  std::int64_t last_order = 0;  // the largest of the line's states that are known
};

// Whether a committed state that is found is continued from, or is an error.
enum class Resume { no, yes };

// Throws IoError when a swap directory of the configuration is absent. Sluice does not create swap
// directories: a directory that is created below a missing mount fills the wrong disk.
void check_directories(const config::TrainConfig& config, plan::Placement placement);

// Locks the directories where the configuration would keep a committed state, the optimizer's swap
// directory and the checkpoint directory, then looks for one: the newest state of the line that the
// swap directory holds, or else of the line whose checkpoint was saved last. So what is read stays
// as it is until the run that reads it changes it. Creates the checkpoint directory when it is
// absent, and removes drafts in it. Each of several ranks also makes and locks its folder of the
// swap directory (`config` names the directories of all, with_rank_folders() comes after), and ends
// there what a killed run left of a commit: its part is then of the step that all ranks committed.
// Resume::no and a state that exists: throws StorageError with both ways out. Resume::yes and no
// state: logs that the run starts over. Throws StorageError naming the process that holds a lock
// longer than `wait`; when one rank throws, all do.
RunSource find_source(const config::TrainConfig& config, plan::Placement placement, Resume resume,
                      offload::HeldDirectories& held, zero::Communicator& ranks,
                      const offload::LockWait& wait = {});
// With one rank.
RunSource find_source(const config::TrainConfig& config, plan::Placement placement, Resume resume,
                      offload::HeldDirectories& held, const offload::LockWait& wait = {});
// The committed state in `directory`, a run's swap directory or a checkpoint, or else its newest
// checkpoint (models::find_run). Throws StorageError.
RunSource read_source(const std::string& directory, zero::Communicator& ranks);
// Throws StorageError or InvalidArgument when the state in `source` has another model, layout, data
// type or seed.
void check_source(const RunSource& source, const plan::Plan& plan, std::uint64_t seed);

// A resumed run takes over LibTorch's thread count, which the bits depend on, unless the
// configuration sets another one: then logs that losses may differ in their last bits.
void adopt_compute_threads(config::TrainConfig& config, const RunSource& source);
// A resumed run takes over the format of its states where the configuration leaves it open.
void adopt_state_format(config::TrainConfig& config, const RunSource& source);

// The model's name in a saved state: the text of its file, or a fixed text for a loop of the user's
// own.
std::string model_text(const plan::Plan& plan);
// The keys that differ in two such texts, for a message: ": n_layer (saved 2, given 3)".
std::string model_difference(const std::string& saved, const std::string& given);
// The units that have optimizer states.
std::vector<zero::UnitLayout> stored_units(const plan::Plan& plan);

}  // namespace sluice::train
