#include "command/session.hpp"

#include <json/writer.h>

#include <utility>

namespace sluice::cli {

namespace {

std::FILE* text_stream(bool json) {
  return json ? stderr : stdout;
}

}  // namespace

Session::Session(std::vector<std::string> argv, bool json)
    : argv_(std::move(argv)),
      json_(json),
      console_(text_stream(json), stderr, probe_terminal(text_stream(json))) {}

void Session::emit(const Json::Value& object) {
  if (json_) emit_text(to_line(object));
}

void Session::emit_text(const std::string& json_object) {
  if (!json_) return;
  console_.status("");
  std::fwrite(json_object.data(), 1, json_object.size(), stdout);
  std::fputc('\n', stdout);
  std::fflush(stdout);
}

std::string to_line(const Json::Value& object) {
  Json::StreamWriterBuilder writer;
  writer["indentation"] = "";
  writer["emitUTF8"] = true;
  writer["precision"] = 15;  // 0.0004, not 0.00040000000000000002
  return Json::writeString(writer, object);
}

}  // namespace sluice::cli
