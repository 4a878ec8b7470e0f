#pragma once
// Choices that the machine makes for a run's drives: the I/O backend, and what the file systems
// offer. A run makes them when it opens its files; `sluice plan` tries them beforehand. With
// "strict", a choice below what was asked for throws InvalidArgument. Thread-safe: free functions
// without state.

#include <string>
#include <vector>

#include "sluice/config/train_config.hpp"
#include "sluice/nvme/io_backend.hpp"
#include "sluice/plan/plan.hpp"

namespace sluice::plan {

// Throws InvalidArgument with the line when the configuration is strict. For a line that names a
// downgrade.
void refuse_if_strict(const config::TrainConfig& config, const std::string& line);

// Names the backend, and why not a better one.
std::string backend_choice(const config::TrainConfig& config, const nvme::BackendChoice& backend);

// Lines for a directory: a caution about its file system, and a line with `why_buffered` where
// files go through the page cache (empty: direct I/O). Throws IoError when the directory cannot be
// examined.
std::vector<std::string> directory_choices(const config::TrainConfig& config,
                                           const std::string& directory,
                                           const std::string& why_buffered);

// A line where checkpoints go to a file system that needs a caution; empty otherwise. Throws
// IoError when the directory cannot be examined.
std::vector<std::string> checkpoint_choices(const config::TrainConfig& config);

// The longest existing prefix of `path`. The run creates a missing checkpoint directory, which is
// then on the file system of this prefix.
std::string existing_part(const std::string& path);

// All of these lines, for the directories that the plan uses. Opens a queue of the backend, and a
// temporary file in each directory. A directory that is missing, or refuses the file, gets a line
// that says so.
std::vector<std::string> storage_choices(const Plan& plan);

}  // namespace sluice::plan
