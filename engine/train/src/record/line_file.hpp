#pragma once
// LineFile: a file of numbered lines that a resumed run goes on with: lines behind the last step
// that counts are cut off.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "sluice/base/fd.hpp"

namespace sluice::train {

// Confined to the thread that trains.
class LineFile {
 public:
  // The number of a line, from 1; 0 for a header; empty for any other text.
  using NumberOf = std::function<std::optional<std::int64_t>(const std::string& line)>;

  // Opens or makes the file, and holds it against other runs. Cuts off lines with numbers above
  // `last_kept`, and a torn last line. If no numbered line would be left, the file is renamed to
  // steps.1.jsonl (or the next free number) instead. `setting`: what chooses the path, for
  // messages. Throws IoError; StorageError when another run writes there.
  LineFile(std::string path, std::int64_t last_kept, const NumberOf& number_of,
           const std::string& setting);

  // True when nothing is in the file yet.
  bool is_empty() const { return written_bytes_ == 0 && waiting_.empty(); }
  // Appends whole lines with one write(). Throws IoError; the lines then wait for the next call,
  // which writes them first.
  void append(const std::string& lines);

 private:
  void open_and_lock(const std::string& setting);

  std::string path_;
  UniqueFd fd_;
  std::uint64_t written_bytes_ = 0;  // whole lines in the file
  std::string waiting_;              // some hundred bytes a step
  bool is_torn_ = false;             // a write has failed: the file may have a part of a line
};

// Writes all of the text; one write() in practice. Throws IoError.
void write_all(int fd, const std::string& text, const std::string& path);

// Creates a directory and its parents; an existing one is unchanged. Throws IoError;
// InvalidArgument when it is a file.
void make_directory(const std::string& directory);
// Makes the directory, and throws the error that a new file in it would meet: a run asks before it
// takes memory.
void check_can_write_lines(const std::string& directory);

}  // namespace sluice::train
