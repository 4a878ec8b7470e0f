#pragma once
// StepsFile: DIR/steps.jsonl, one JSON object a line, each written with one write() so that a
// killed run leaves whole lines.

#include <cstdint>
#include <optional>
#include <string>

#include "record/line_file.hpp"
#include "sluice/train/report.hpp"

namespace sluice::train {

// Confined to the thread that trains.
class StepsFile {
 public:
  // Creates the directory, and opens the file as LineFile does: lines of steps after
  // `committed_step` are cut off, and a warning names steps up to it that are missing. An empty
  // directory name: append() writes nothing. Throws IoError; StorageError when another run writes
  // there.
  StepsFile(const std::string& directory, std::int64_t committed_step);
  // As LineFile::append.
  void append(const StepRecord& record);
  // As LineFile::sync.
  void sync();
  // As LineFile::finish.
  void finish();

 private:
  std::optional<LineFile> file_;
};

}  // namespace sluice::train
