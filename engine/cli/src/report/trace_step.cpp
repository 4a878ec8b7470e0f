#include "report/trace_step.hpp"

#include <json/reader.h>
#include <json/value.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <optional>
#include <string_view>

#include "report/run_record.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/json/json_reader.hpp"
#include "sluice/base/trace.hpp"

namespace sluice::cli {

namespace {

struct StepTime {
  std::int64_t step = 0;
  double begin_us = 0;
  double duration_us = 0;
};

// The number behind `key` in an event's line; the recorder writes one event per line.
std::optional<double> number_behind(const std::string& line, std::string_view key) {
  const std::size_t at = line.find(key);
  if (at == std::string::npos) return std::nullopt;
  return std::strtod(line.c_str() + at + key.size(), nullptr);
}

// Calls `event` for every line that is an event, without the comma at the line's end.
void for_each_line(const std::string& path, const std::function<void(std::string&)>& event) {
  std::ifstream file = open_record(path);
  for (std::string line; std::getline(file, line);) {
    while (!line.empty() && (line.back() == ',' || line.back() == '\r')) line.pop_back();
    if (line.starts_with("{\"ph\":")) event(line);
  }
  if (file.bad()) throw IoError(EIO, "read", path);
}

class EventReader {
 public:
  // Null when the line is cut or damaged.
  Json::Value read(const std::string& line) const {
    const std::optional<Json::Value> event = reader_.read(line);
    const bool whole =
        event && event->isObject() && (*event)["args"].isObject() && (*event)["name"].isString();
    return whole ? *event : Json::Value();
  }

 private:
  JsonReader reader_{lenient_json()};
};

std::vector<StepTime> steps_of(const std::string& path) {
  std::vector<StepTime> steps;
  const EventReader reader;
  for_each_line(path, [&](std::string& line) {
    if (line.find("\"cat\":\"step\"") == std::string::npos) return;
    const Json::Value event = reader.read(line);
    if (!event.isObject() || !event["args"]["step"].isInt64()) return;
    if (!event["ts"].isNumeric() || !event["dur"].isNumeric()) return;
    steps.push_back(
        {event["args"]["step"].asInt64(), event["ts"].asDouble(), event["dur"].asDouble()});
  });
  return steps;
}

std::optional<StepTime> choose(std::vector<StepTime> steps, std::optional<std::int64_t> wanted) {
  if (wanted) {
    const auto found = std::find_if(steps.begin(), steps.end(),
                                    [&](const StepTime& each) { return each.step == *wanted; });
    return found == steps.end() ? std::nullopt : std::optional(*found);
  }
  if (steps.empty()) return std::nullopt;
  // The first step includes work that happens only once.
  if (steps.size() > 1) steps.erase(steps.begin());
  const auto middle = steps.begin() + static_cast<std::ptrdiff_t>((steps.size() - 1) / 2);
  std::nth_element(steps.begin(), middle, steps.end(), [](const StepTime& a, const StepTime& b) {
    return a.duration_us < b.duration_us;
  });
  return *middle;
}

std::string args_text(const Json::Value& args) {
  std::string text;
  for (const std::string& key : args.getMemberNames()) {
    if (!args[key].isNumeric()) continue;
    text += (text.empty() ? "" : ", ") + key + " " + args[key].asString();
  }
  return text;
}

// Adds the line's span if it lies within the step, or the lane's name if the line has one.
void add_line(const std::string& line, const EventReader& reader, const StepTime& step,
              std::map<std::int64_t, TracedLane>& lanes) {
  const bool names = line.find("\"thread_name\"") != std::string::npos;
  const std::optional<double> begin = number_behind(line, "\"ts\":");
  const std::optional<double> duration = number_behind(line, "\"dur\":");
  const bool inside = begin && duration &&
                      *begin<step.begin_us + step.duration_us&& * begin + *duration> step.begin_us;
  if (!names && !inside) return;
  const Json::Value event = reader.read(line);
  if (!event.isObject() || !event["tid"].isInt64()) return;
  TracedLane& lane = lanes[event["tid"].asInt64()];
  if (names) {
    lane.name = event["args"]["name"].isString() ? event["args"]["name"].asString() : "";
    return;
  }
  if (event["cat"].isString()) lane.row = event["cat"].asString();
  lane.spans.push_back({event["name"].asString(), *begin - step.begin_us,
                        *begin - step.begin_us + *duration, args_text(event["args"])});
}

}  // namespace

std::optional<TracedStep> read_traced_step(const std::string& path,
                                           std::optional<std::int64_t> wanted) {
  SLUICE_CHECK(is_trace_file(path), path + ": this is no trace that sluice train wrote");
  const std::optional<StepTime> step = choose(steps_of(path), wanted);
  if (!step) return std::nullopt;
  TracedStep found{step->step, step->duration_us, {}};
  std::map<std::int64_t, TracedLane> lanes;
  const EventReader reader;
  for_each_line(path, [&](std::string& line) { add_line(line, reader, *step, lanes); });
  for (auto& [id, lane] : lanes) {
    if (!lane.spans.empty()) found.lanes.push_back(std::move(lane));
  }
  return found;
}

}  // namespace sluice::cli
