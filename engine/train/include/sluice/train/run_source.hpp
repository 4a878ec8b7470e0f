#pragma once
// Where a run continues from: nothing, its own swap directory, or a checkpoint, written by any
// number of ranks; and what it takes over from there. No LibTorch. Thread-safe: values and free
// functions without state.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/config/train_config.hpp"
#include "sluice/models/saved_state.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/zero/unit_layout.hpp"

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
// How a user asks for it, for messages: these functions serve the program and loops alike.
inline constexpr std::string_view kResumeWords =
    "--resume (in Python: resume=True; in a C++ loop: EngineOptions::resume)";

// Throws IoError when a swap directory of the configuration is absent or cannot be reached. Sluice
// does not create swap directories: a directory that is created below a missing mount fills the
// wrong disk. A run that resumes is told to mount the drive.
void check_directories(const config::TrainConfig& config, plan::Placement placement, Resume resume);

// The state that a run of this configuration goes on from: the newest of the line that the swap
// directory holds, or else of the line whose checkpoint was saved last; without a state, an empty
// source. Changes nothing and locks nothing, so another process may change what it reads. Throws
// StorageError, and IoError when a directory is absent or unreadable.
RunSource choose_source(const config::TrainConfig& config, plan::Placement placement);
// The committed state in `directory`, a swap directory or a checkpoint. Throws StorageError.
RunSource source_in(const std::string& directory);
// Throws StorageError when a run of this configuration would not find all parts of the state in its
// swap directory, in the directories of the configuration or, of ranks of another number than now,
// where these left them. Parts on other hosts are not looked at, nor, with as many ranks as before,
// those of other ranks. Changes and locks nothing.
void check_parts(const RunSource& source, const config::TrainConfig& config,
                 plan::Placement placement);
// Throws StorageError when `folder` has a rank's committed part, while ranks.json is not where rank
// 0 looks: it is lost, or rank 0 runs on another host than before. With durability none, ranks.json
// goes when a run begins to write.
void check_is_leftover(const std::string& folder);
// Whether `directory` has a whole checkpoint of this step of the line.
bool has_checkpoint(const std::string& directory, const std::string& line, std::int64_t step);
// Whether a run that goes on from `source`, up to step `total_steps`, writes a checkpoint. One that
// takes no step writes the checkpoint of its state, where `directory` has none. One that was to
// take none writes nothing.
bool writes_checkpoints(const RunSource& source, std::int64_t total_steps,
                        const std::string& directory);
// Logs that a run which was to resume starts over, and where it looked; a warning when it has no
// place to look.
void log_nothing_to_resume(const config::TrainConfig& config, plan::Placement placement);

// Throws StorageError or InvalidArgument when the state in `source` has another model, layout, data
// type or seed.
void check_source(const RunSource& source, const plan::Plan& plan, std::uint64_t seed);

// A resumed run takes over LibTorch's thread count, which the bits depend on, unless the
// configuration sets another one: then logs that losses may differ in their last bits.
void adopt_compute_threads(config::TrainConfig& config, const RunSource& source);
// A resumed run takes over the format of its states where the configuration leaves it open.
void adopt_state_format(config::TrainConfig& config, const RunSource& source);
// A resumed run takes over the number of micro-batches per pass, which bits may depend on, where
// the configuration leaves it open.
void adopt_passes(config::TrainConfig& config, const RunSource& source);
// All of these.
void adopt_settings(config::TrainConfig& config, const RunSource& source);
// The settings of a saved state that adopt_passes() reads (models::RunSettings).
inline constexpr const char* kMicroBatchesPerPass = "number of micro-batches per pass";
inline constexpr const char* kLastPass = "number of micro-batches in the last pass";

// The model's name in a saved state: the text of its file, or a fixed text for a loop of the user's
// own.
std::string model_text(const plan::Plan& plan);
// The keys that differ in two such texts, for a message: ": n_layer (saved 2, given 3)".
std::string model_difference(const std::string& saved, const std::string& given);
// The units that have optimizer states.
std::vector<zero::UnitLayout> stored_units(const plan::Plan& plan);

}  // namespace sluice::train
