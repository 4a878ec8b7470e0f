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
  // off. A file of which nothing would be left is renamed to steps.1.jsonl (or the next free
  // number). An empty directory name writes nothing. Throws IoError; StorageError when another run
  // writes there.
  StepsFile(const std::string& directory, std::int64_t committed_step);
  void append(const StepRecord& record);

 private:
  void open_and_lock();

  std::string path_;
  UniqueFd fd_;
};

// With those above it; one that is there is left as it is. Throws IoError.
void make_directory(const std::string& directory);

// Replaces `path` by `text` atomically (temporary file, rename). Throws IoError.
void write_file(const std::string& path, const std::string& text);

}  // namespace sluice::train
