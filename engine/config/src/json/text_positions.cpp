#include "json/text_positions.hpp"

#include <algorithm>

#include "sluice/base/bytes.hpp"

namespace sluice::config {

namespace {

constexpr std::size_t kMarkEvery = kKiB;

}  // namespace

TextPositions::TextPositions(std::string_view text) : text_(text) {
  marks_.reserve(text.size() / kMarkEvery + 1);
  Position position;
  marks_.push_back(position);
  for (std::size_t mark = kMarkEvery; mark <= text.size(); mark += kMarkEvery) {
    advance(position, mark - kMarkEvery, mark);
    marks_.push_back(position);
  }
}

bool TextPositions::ends_line(std::size_t offset) const {
  if (text_[offset] == '\n') return true;
  return text_[offset] == '\r' && (offset + 1 == text_.size() || text_[offset + 1] != '\n');
}

void TextPositions::advance(Position& position, std::size_t from, std::size_t to) const {
  for (std::size_t i = from; i < to; ++i) {
    if (ends_line(i)) {
      ++position.line;
      position.column = 1;
    } else if ((static_cast<unsigned char>(text_[i]) & 0xC0U) != 0x80U) {  // begins a character
      ++position.column;
    }
  }
}

Position TextPositions::at(std::size_t offset) const {
  if (marks_.empty()) return {};
  offset = std::min(offset, text_.size());
  const std::size_t mark = offset / kMarkEvery;
  Position position = marks_[mark];
  advance(position, mark * kMarkEvery, offset);
  return position;
}

std::size_t TextPositions::offset_of_line(std::size_t line) const {
  std::size_t begin = 0;
  std::size_t found = 1;
  for (std::size_t i = 0; i < text_.size() && found < line; ++i) {
    if (!ends_line(i)) continue;
    begin = i + 1;
    ++found;
  }
  return begin;
}

}  // namespace sluice::config
