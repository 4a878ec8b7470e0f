#include "mutator.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace sluice::fuzz {
namespace {

using std::string_literals::operator""s;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Pieces of JSON, invalid UTF-8 (overlong, a surrogate, cut off), zero bytes.
const std::array<std::string, 28> kPieces = {"{"s,
                                             "}"s,
                                             "["s,
                                             "]"s,
                                             "\""s,
                                             ":"s,
                                             ","s,
                                             "//"s,
                                             "/*"s,
                                             "\\u0000"s,
                                             "\\ud800"s,
                                             "null"s,
                                             "true"s,
                                             "-"s,
                                             "\n"s,
                                             "1e999"s,
                                             "\xFF"s,
                                             "\xC0\x80"s,
                                             "\xED\xA0\x80"s,
                                             "\xF0\x9F"s,
                                             "\0"s,
                                             "\0\0\0\0"s,
                                             "\"a\": 0,"s,
                                             "\"\": {},"s,
                                             "\xEF\xBB\xBF"s,
                                             "\\"s,
                                             "../"s,
                                             "%s%n"s};

const std::array<std::string, 14> kNumbers = {"0"s,
                                              "-1"s,
                                              "2147483648"s,
                                              "4294967295"s,
                                              "4294967296"s,
                                              "9007199254740993"s,
                                              "9223372036854775807"s,
                                              "9223372036854775808"s,
                                              "18446744073709551615"s,
                                              "18446744073709551616"s,
                                              "-9223372036854775809"s,
                                              "1e308"s,
                                              "1e-320"s,
                                              "99999999999999999999999999999999999999999999"s};

constexpr std::array<std::uint64_t, 8> kBinaryNumbers = {
    0, 1, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 100'000'000, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF};

}  // namespace

std::size_t Mutator::size_up_to(std::size_t most) {
  const std::size_t limit = below(16) == 0 ? most : std::min<std::size_t>(most, 64);
  return 1 + below(std::max<std::size_t>(1, limit));
}

std::string Mutator::mutated(const std::vector<std::string>& files) {
  std::string text = files[below(files.size())];
  for (std::size_t times = 1 + below(4); times > 0; --times) damage(text, files);
  return text;
}

void Mutator::damage(std::string& text, const std::vector<std::string>& files) {
  switch (below(11)) {
    case 0:
    case 1:
      return flip(text);
    case 2:
      return cut(text);
    case 3:
      return splice(text, files[below(files.size())]);
    case 4:
    case 5:
      return replace_number(text);
    case 6:
      return set_binary_number(text);
    case 7:
      return repeat_piece(text);
    case 8:
      return nest(text);
    case 9:
      return insert_long_run(text);
    default:
      return insert(text, kPieces[below(kPieces.size())]);
  }
}

void Mutator::insert(std::string& text, const std::string& piece) {
  if (text.size() + piece.size() > most_bytes_) return;
  text.insert(below(text.size() + 1), piece);
}

void Mutator::flip(std::string& text) {
  if (text.empty()) return;
  for (std::size_t times = 1 + below(4); times > 0; --times) {
    char& byte = text[below(text.size())];
    byte = static_cast<char>(static_cast<unsigned char>(byte) ^ (1U << below(8)));
  }
}

void Mutator::cut(std::string& text) {
  const std::size_t at = below(text.size() + 1);
  if (below(2) == 0) {
    text.resize(at);
  } else {
    text.erase(at, size_up_to(text.size() + 1));
  }
}

void Mutator::splice(std::string& text, const std::string& other) {
  text.resize(below(text.size() + 1));
  insert(text, other.substr(below(other.size() + 1)));
}

void Mutator::replace_number(std::string& text) {
  const std::size_t from = below(text.size() + 1);
  const auto begin =
      std::find_if(text.begin() + static_cast<std::ptrdiff_t>(from), text.end(), is_digit);
  const auto end = std::find_if_not(begin, text.end(), is_digit);
  if (begin == end) return;
  text.replace(begin, end, kNumbers[below(kNumbers.size())]);
}

void Mutator::set_binary_number(std::string& text) {
  if (text.size() < sizeof(std::uint64_t)) return;
  // Half of them where a header's length stands.
  const std::size_t at = below(2) == 0 ? 0 : below(text.size() - sizeof(std::uint64_t) + 1);
  const std::uint64_t number = kBinaryNumbers[below(kBinaryNumbers.size())];
  std::memcpy(text.data() + at, &number, sizeof(number));
}

// Repeats a piece up to the largest size; the digits in it count up, or stay, which repeats keys.
void Mutator::repeat_piece(std::string& text) {
  if (text.empty()) return;
  const std::size_t at = below(text.size());
  const std::string piece = text.substr(at, 1 + below(100));
  const std::size_t room = (most_bytes_ - std::min(most_bytes_, text.size())) / (piece.size() + 8);
  const bool counts_up = below(2) == 0;
  std::string repeated;
  for (std::size_t i = 0, times = size_up_to(room); i < times; ++i) {
    const auto digit = std::find_if(piece.begin(), piece.end(), is_digit);
    const auto place = static_cast<std::size_t>(digit - piece.begin());
    repeated += piece.substr(0, place);
    if (counts_up) repeated += std::to_string(i);
    repeated += piece.substr(place);
  }
  insert(text, repeated);
}

void Mutator::nest(std::string& text) {
  const bool objects = below(2) == 0;
  const std::string open = objects ? "{\"a\":" : "[";
  const std::size_t depth = size_up_to(most_bytes_ / 16);
  std::string nested;
  for (std::size_t i = 0; i < depth; ++i) nested += open;
  nested += "0";
  if (below(2) == 0) nested += std::string(depth, objects ? '}' : ']');
  // In half of the cases in the place of a value, so that the text stays well-formed.
  const std::size_t colon = text.find(": ", below(text.size() + 1));
  if (colon == std::string::npos || below(2) == 0 || text.size() + nested.size() > most_bytes_) {
    return insert(text, nested);
  }
  const std::size_t end = std::min(text.find_first_of(",}\n", colon), text.size());
  text.replace(colon + 2, end - std::min(end, colon + 2), nested);
}

void Mutator::insert_long_run(std::string& text) {
  static constexpr std::array<char, 8> kBytes = {'a', '0', '9', ' ', '\n', '\0', '\\', '\x80'};
  const char byte = kBytes[below(kBytes.size())];
  insert(text, std::string(size_up_to(most_bytes_ - std::min(most_bytes_, text.size())), byte));
}

}  // namespace sluice::fuzz
