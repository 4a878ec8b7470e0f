#pragma once
// Lines and columns of the bytes of a text. Keeps a mark for each KiB, so the memory is a fraction
// of the text's, and a text that is one long line costs no more than any other.

#include <cstddef>
#include <string_view>
#include <vector>

namespace sluice::config {

struct Position {
  int line = 1;
  int column = 1;  // characters, from 1
};

// Immutable after construction. Thread-compatible: callers synchronise.
class TextPositions {
 public:
  TextPositions() = default;
  // `text` must outlive this object. A line ends with "\n", "\r\n" or "\r".
  explicit TextPositions(std::string_view text);

  // An offset beyond the end counts as the end.
  Position at(std::size_t offset) const;
  // Where a line begins, counted from 1; the last line for a larger number.
  std::size_t offset_of_line(std::size_t line) const;

 private:
  void advance(Position& position, std::size_t from, std::size_t to) const;
  bool ends_line(std::size_t offset) const;

  std::string_view text_;
  std::vector<Position> marks_;  // of the bytes at multiples of 1 KiB
};

}  // namespace sluice::config
