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
  // Creates the directory. Cuts off lines of steps after `committed_step`, and a torn last line. If
  // no line would be left, the file is renamed to steps.1.jsonl (or the next free number) instead.
  // An empty directory name: append() writes nothing. Throws IoError; StorageError when another run
  // writes there.
  StepsFile(const std::string& directory, std::int64_t committed_step);
  void append(const StepRecord& record);

 private:
  void open_and_lock();

  std::string path_;
  UniqueFd fd_;
};

// Creates a directory and its parents; an existing one is unchanged. Throws IoError.
void make_directory(const std::string& directory);

// Replaces `path` by `text` atomically (temporary file, rename). Throws IoError.
void write_file(const std::string& path, const std::string& text);

}  // namespace sluice::train
