#pragma once
// LineFile: a file of numbered lines that a resumed run goes on with: lines behind the last step
// that counts are cut off, and damaged ones are put aside.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "record/append_file.hpp"

namespace sluice::train {

// The lines of a file.
struct LineFormat {
  // The number of a line, from 1; 0 for a header; empty for any other text. Numbers ascend. Lines
  // with control bytes are not asked for.
  std::function<std::optional<std::int64_t>(const std::string& line)> number_of;
  // Behind the first line, each number has one.
  bool has_every_number = false;
  std::string setting;  // what chooses the path, for messages
  std::string header;   // the first line of a new file, if it has one
};

// Confined to the thread that trains.
class LineFile {
 public:
  // Opens or makes the file, and holds it against other runs. Cuts off lines with numbers above
  // `last_kept`, and a torn last line. If no numbered line would be left, the file is renamed to
  // steps.1.jsonl (or the next free number) instead, unless it `is_of_this_run`. Where lines up to
  // `last_kept` are damaged, the whole lines among them are written to a new file first, and then
  // the damaged one is renamed so too; a warning says so. Another warning says which lines up to
  // `last_kept` a file that was there has not. A file that has another name too is copied: its
  // other name keeps all lines. Forked children do not hold the file. Throws IoError; StorageError
  // when another run writes there.
  LineFile(const std::string& path, std::int64_t last_kept, const LineFormat& format,
           bool is_of_this_run = false);

  // As AppendFile::is_empty.
  bool is_empty() const { return file_.is_empty(); }
  // Appends whole lines, as AppendFile::append.
  void append(const std::string& lines) { file_.append(lines); }
  // As AppendFile::sync.
  void sync() { file_.sync(); }
  // As AppendFile::finish.
  void finish() { file_.finish(); }

 private:
  AppendFile file_;
};

// Creates a directory and its parents, whose names then survive loss of power; an existing one is
// unchanged. Throws IoError; InvalidArgument when it is a file.
void make_directory(const std::string& directory);
// Makes the directory, and throws the error that a new file in it would meet: a run asks before it
// takes memory.
void check_can_write_lines(const std::string& directory);

}  // namespace sluice::train
