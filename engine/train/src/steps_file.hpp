#pragma once
// StepsFile: DIR/steps.jsonl, one JSON object a line, each written with one write() so that a
// killed run leaves whole lines.

#include <cstdint>
#include <string>

#include "sluice/base/fd.hpp"
#include "sluice/train/report.hpp"

namespace sluice::train {

// Confined to the thread that trains.
class StepsFile {
 public:
  // Creates the directory. `committed_step`: lines of later steps, and a torn last line, are cut
  // off; 0 begins anew. An empty directory name writes nothing. Throws IoError.
  StepsFile(const std::string& directory, std::int64_t committed_step);
  void append(const StepRecord& record);

 private:
  std::string path_;
  UniqueFd fd_;
};

// Replaces `path` by `text` atomically (temporary file, rename). Throws IoError.
void write_file(const std::string& path, const std::string& text);

}  // namespace sluice::train
