#pragma once
// One pass over JSON text that finds the position of each key and the repeated keys, which JsonCpp
// does not report. It also makes JSON of what DeepSpeed's reader (hjson) allows. It blanks comments
// (//, /* */ and #) and the comma behind a last member or element. It quotes keys without quotes.
// It puts a comma where only the end of a line separates two members or elements. It refuses text
// that JsonCpp reads leniently (numbers such as "-" or "01", control characters in strings) or
// slowly (deep nesting). JsonCpp checks the grammar itself. Thread-safe: free functions without
// state.

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::config {

// Whether a number of JSON is written as another one than 0 and read as 0.
bool underflows(std::string_view number);

struct ScanError {
  std::size_t offset = 0;  // bytes
  std::string message;
};

struct ScanResult {
  // The text as JSON (RFC 8259), if JsonCpp accepts it: comments as spaces, all keys in quotes,
  // commas between members and nowhere else, equal lines.
  std::string json;
  std::vector<std::size_t> inserted;  // offsets in `json` of quotes and commas that the text lacks
  // The offset in the text of an offset in `json`.
  std::size_t original(std::size_t json_offset) const;
  // Offset of the key of the member whose value begins at `value_offset`, both in the text.
  std::optional<std::size_t> key_offset_of(std::size_t value_offset) const;
  struct MemberOffsets {
    std::size_t value = 0;
    std::size_t key = 0;
  };
  std::deque<MemberOffsets> members;  // in the order of the text
  // Offsets of the first keys that repeat one of their object.
  std::vector<std::size_t> repeated_keys;
  std::optional<ScanError> error;  // the first error; the scan stops there
};

// Repeated keys that a scan notes; people mend a few, and a hostile file has 200,000.
inline constexpr std::size_t kMostRepeatedKeys = 100;

ScanResult scan_json(std::string_view text);

// Offset of the first byte outside well-formed UTF-8 (RFC 3629).
std::optional<std::size_t> find_invalid_utf8(std::string_view text);

}  // namespace sluice::config
