#include "json/json_document.hpp"

#include <fcntl.h>
#include <json/reader.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "json/key_path.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/fd.hpp"
#include "sluice/base/json/json_writer.hpp"

namespace sluice::config {

namespace {

// Real configurations have a few KiB. A larger file is a data file given by mistake, so it is
// reported instead of parsed.
constexpr std::size_t kMaxFileBytes = kMiB;
constexpr std::size_t kMaxShownBytes = 60;

const char* type_name(const Json::Value& value) {
  switch (value.type()) {
    case Json::nullValue:
      return "null";
    case Json::intValue:
    case Json::uintValue:
    case Json::realValue:
      return "number";
    case Json::stringValue:
      return "string";
    case Json::booleanValue:
      return "bool";
    case Json::arrayValue:
      return "list";
    case Json::objectValue:
      return "object";
  }
  return "value";
}

std::string blank_byte_order_mark(std::string_view text) {
  std::string copy(text);
  if (copy.starts_with("\xEF\xBB\xBF")) copy.replace(0, 3, "   ");
  return copy;
}

}  // namespace

// Replaces control characters by spaces and cuts the text at a character boundary.
std::string on_one_line(std::string_view text) {
  std::size_t length = std::min(text.size(), kMaxShownBytes);
  while (length < text.size() && length > 0 &&
         (static_cast<unsigned char>(text[length]) & 0xC0U) == 0x80U) {
    --length;
  }
  std::string out(text.substr(0, length));
  std::replace_if(
      out.begin(), out.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, ' ');
  return length < text.size() ? out + "..." : out;
}

std::string quoted(std::string_view text) {
  return "\"" + on_one_line(text) + "\"";
}

JsonDocument::JsonDocument(std::string_view text, std::string shown_path)
    : shown_path_(std::move(shown_path)) {
  if (text.size() > kMaxFileBytes) {
    fail(0, "larger than " + format_bytes(kMaxFileBytes) + ": not a configuration file");
  }
  text_ = blank_byte_order_mark(text);
  positions_ = TextPositions(text_);
  if (const auto offset = find_invalid_utf8(text_)) fail(*offset, "not UTF-8 from here on");
  scan_ = scan_json(text_);
  if (scan_.json.find_first_not_of(" \t\r\n") == std::string::npos && !scan_.error) {
    fail(0, "the file is empty; expected a JSON object: { ... }");
  }
  if (scan_.error) fail(scan_.error->offset, "not JSON: " + scan_.error->message);
  // The scan misses a key repeated through an escape; JsonCpp refuses it.
  parse(scan_.repeated_keys.empty());
  if (!root_.isObject()) {
    fail(scan_.original(static_cast<std::size_t>(root_.getOffsetStart())),
         "expected a JSON object { ... } on top, found a " + std::string(type_name(root_)));
  }
  collect_repeated_keys();
}

void JsonDocument::parse(bool refuse_repeated_keys) {
  Json::CharReaderBuilder builder;
  builder["collectComments"] = false;
  builder["allowComments"] = false;  // blanked already
  builder["allowTrailingCommas"] = false;
  builder["strictRoot"] = false;
  builder["failIfExtra"] = true;
  builder["rejectDupKeys"] = refuse_repeated_keys;
  const std::unique_ptr<Json::CharReader> reader(builder.newCharReader());
  const std::string& text = scan_.json;
  std::string errors;
  if (reader->parse(text.data(), text.data() + text.size(), &root_, &errors)) return;
  // JsonCpp's message: "* Line 3, Column 5\n  Missing ',' ...\n", lines and bytes from 1.
  std::size_t line = 1, column = 1;
  std::sscanf(errors.c_str(), "* Line %zu, Column %zu", &line, &column);
  std::string message = errors.substr(std::min(errors.find('\n'), errors.size() - 1) + 1);
  message = message.substr(0, message.find('\n'));
  message.erase(0, message.find_first_not_of(' '));
  const std::size_t offset = TextPositions(text).offset_of_line(line) + column - 1;
  if (std::isinf(std::strtod(text.c_str() + std::min(offset, text.size()), nullptr)))
    message = "the number is too large";
  fail(scan_.original(offset), "not JSON: " + message);
}

void JsonDocument::collect_repeated_keys() {
  for (const std::size_t offset : scan_.repeated_keys) {
    const Position at = position_at(offset);
    const bool has_quotes = text_[offset] == '"';
    const std::size_t begin = offset + (has_quotes ? 1 : 0);
    const std::size_t end = text_.find_first_of(has_quotes ? "\"" : ": \t\r\n", begin);
    repeated_keys_.push_back({at.line, at.column, on_one_line(text_.substr(begin, end - begin)),
                              "this key is given twice in its object; remove one", ""});
  }
}

void JsonDocument::fail(std::size_t offset, const std::string& message) const {
  const Position at = position_at(offset);
  throw ConfigError(shown_path_, {{at.line, at.column, "", message, ""}});
}

Position JsonDocument::position_at(std::size_t offset) const {
  return positions_.at(offset);
}

Position JsonDocument::position_of_key(const Json::Value& value) const {
  if (!flag_of(value).empty()) return {0, 0};
  const auto key =
      scan_.key_offset_of(scan_.original(static_cast<std::size_t>(value.getOffsetStart())));
  return key ? position_at(*key) : position_of(value);
}

Position JsonDocument::position_of(const Json::Value& value) const {
  if (!flag_of(value).empty()) return {0, 0};
  return position_at(scan_.original(static_cast<std::size_t>(value.getOffsetStart())));
}

std::string JsonDocument::flag_of(const Json::Value& value) const {
  const auto offset = static_cast<std::size_t>(value.getOffsetStart());
  return offset > scan_.json.size() ? flags_[offset - scan_.json.size() - 1] : "";
}

void JsonDocument::mark(Json::Value& value, std::size_t flag) const {
  value.setOffsetStart(static_cast<std::ptrdiff_t>(scan_.json.size() + 1 + flag));
  if (!value.isObject() && !value.isArray()) return;
  for (Json::Value& member : value) mark(member, flag);
}

void JsonDocument::set(const std::vector<std::string>& names, const Json::Value& value,
                       const std::string& flag) {
  flags_.push_back(flag);
  Json::Value marked = value;
  mark(marked, flags_.size() - 1);
  Json::Value* place = &root_;
  for (const std::string& name : names) {
    if (place->isArray() && is_index(name)) {
      // The list is no longer the file's.
      place->setOffsetStart(marked.getOffsetStart());
      place = &(*place)[static_cast<Json::ArrayIndex>(std::stoul(name))];
      continue;
    }
    if (!place->isObject()) {  // absent, or another form of the section
      *place = Json::Value(Json::objectValue);
      mark(*place, flags_.size() - 1);
    }
    place = &(*place)[name];
  }
  *place = marked;
}

std::string JsonDocument::shown(const Json::Value& value) const {
  if (value.isNull()) return "null";
  if (value.isObject()) return "an object";
  if (!flag_of(value).empty()) return on_one_line(json_line(value)) + " (" + type_name(value) + ")";
  const auto begin = static_cast<std::size_t>(value.getOffsetStart());
  const auto end = static_cast<std::size_t>(value.getOffsetLimit());
  return on_one_line(std::string_view(scan_.json).substr(begin, end - begin)) + " (" +
         type_name(value) + ")";
}

std::optional<Json::Value> parse_json_value(std::string_view text) {
  Json::CharReaderBuilder builder;
  builder["strictRoot"] = false;
  builder["failIfExtra"] = true;
  const std::unique_ptr<Json::CharReader> reader(builder.newCharReader());
  Json::Value value;
  try {
    const bool is_json = !text.empty() && find_invalid_utf8(text) == std::nullopt &&
                         reader->parse(text.data(), text.data() + text.size(), &value, nullptr);
    const bool is_lost = is_json && value.isDouble() && underflows(text);
    return is_json && !is_lost ? std::optional(value) : std::nullopt;
  } catch (const Json::Exception&) {  // nested too deeply
    return std::nullopt;
  }
}

std::string read_config_file(const std::string& path) {
  const auto fail = [&](int error_number) {
    throw InvalidArgument("cannot read " + path + ": " +
                          std::generic_category().message(error_number));
  };
  // Opens with O_NONBLOCK, because opening a FIFO without a writer would block. Clears the flag for
  // reading: a FIFO without a writer then reads as empty, and a shell's <(command) is read to its
  // end.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) fail(errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) fail(errno);
  if (S_ISDIR(info.st_mode)) fail(EISDIR);
  if (S_ISFIFO(info.st_mode) && ::fcntl(fd.get(), F_SETFL, O_RDONLY) != 0) fail(errno);
  std::string text;
  char buffer[16384];
  while (text.size() <= kMaxFileBytes) {
    const ssize_t got = ::read(fd.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(errno);
    if (got == 0) break;
    text.append(buffer, static_cast<std::size_t>(got));
  }
  return text;
}

}  // namespace sluice::config
