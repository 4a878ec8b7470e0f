#include "report/run_record.hpp"

#include <json/reader.h>

#include <cerrno>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/file/paths.hpp"
#include "sluice/base/json/json_reader.hpp"

namespace sluice::cli {

namespace {

constexpr std::uint64_t kMostReportBytes = 64 * kMiB;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// NaN when `keys` lead to nothing, or to null.
double value_at(const Json::Value& line, std::initializer_list<const char*> keys) {
  return number_at(line, keys).value_or(kNone);
}

double zero_for_none(double value) {
  return std::isfinite(value) ? value : 0;
}

StepValues values_of(const Json::Value& line) {
  StepValues values;
  values[StepValue::loss] = value_at(line, {"loss"});
  values[StepValue::eval_loss] = value_at(line, {"eval_loss"});
  values[StepValue::lr] = value_at(line, {"lr"});
  values[StepValue::seconds] = value_at(line, {"seconds"});
  values[StepValue::tokens_per_second] = value_at(line, {"tokens"}) / values[StepValue::seconds];
  values[StepValue::commit_seconds] = value_at(line, {"commit_seconds"});
  values[StepValue::h2d_bytes] = value_at(line, {"bytes", "h2d"});
  values[StepValue::d2h_bytes] = value_at(line, {"bytes", "d2h"});
  values[StepValue::read_bytes] = value_at(line, {"bytes", "nvme_read"});
  values[StepValue::written_bytes] = value_at(line, {"bytes", "nvme_write"});
  const std::pair<StepValue, const char*> stalls[] = {{StepValue::stall_h2d, "h2d"},
                                                      {StepValue::stall_d2h, "d2h"},
                                                      {StepValue::stall_read, "nvme_read"},
                                                      {StepValue::stall_write, "nvme_write"},
                                                      {StepValue::stall_update, "update"}};
  double stalled = 0;
  for (const auto& [value, link] : stalls) {
    values[value] = value_at(line, {"stall_seconds", link});
    stalled += zero_for_none(values[value]);
  }
  // Files of earlier versions lack "compute_seconds".
  const double rest =
      values[StepValue::seconds] - stalled - zero_for_none(values[StepValue::commit_seconds]);
  const double computed = value_at(line, {"compute_seconds"});
  values[StepValue::compute_seconds] = std::isfinite(computed) ? computed : std::max(0.0, rest);
  return values;
}

// Adds the line of a step; returns the line's mistake, or an empty text.
std::string add_line(RunSteps& steps, std::int64_t first_of_run, const Json::Value& line) {
  const Json::Value& step = line["step"];
  if (!step.isInt64() || step.asInt64() < 1) return "expected a step's number as \"step\", from 1";
  if (steps.count > 0 && step.asInt64() <= steps.last_step) {
    return "step " + std::to_string(step.asInt64()) + " comes after step " +
           std::to_string(steps.last_step);
  }
  for (const char* key : {"bytes", "stall_seconds"}) {
    if (line.isMember(key) && !line[key].isObject())
      return "expected an object as \"" + std::string(key) + "\"";
  }
  const StepValues values = values_of(line);
  if (steps.count++ == 0) {
    steps.first_step = step.asInt64();
  } else {
    steps.missing += static_cast<std::uint64_t>(step.asInt64()) -
                     static_cast<std::uint64_t>(steps.last_step) - 1;
  }
  steps.last_step = step.asInt64();
  steps.buckets.add(steps.last_step, values);
  if (std::isfinite(values[StepValue::loss])) {
    steps.last_loss = values[StepValue::loss];
  } else {
    ++steps.non_finite;
  }
  if (std::isfinite(values[StepValue::eval_loss])) {
    steps.last_eval_loss = values[StepValue::eval_loss];
  } else if (steps.last_step >= first_of_run) {
    steps.training.add(steps.last_step, values);
  }
  if (line["skipped"].isBool() && line["skipped"].asBool()) {
    ++steps.skipped;
    if (steps.first_skipped.size() < RunSteps::kListed)
      steps.first_skipped.push_back(steps.last_step);
  }
  steps.tokens += zero_for_none(value_at(line, {"tokens"}));
  steps.seconds += zero_for_none(values[StepValue::seconds]);
  return "";
}

}  // namespace

std::ifstream open_record(const std::string& path) {
  check_regular_file(path);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw IoError(errno != 0 ? errno : EIO, "open", path);
  return file;
}

std::optional<double> number_at(const Json::Value& root, std::initializer_list<const char*> keys) {
  const Json::Value* at = &root;
  for (const char* key : keys) {
    if (!at->isObject()) return std::nullopt;
    at = &(*at)[key];
  }
  if (!at->isNumeric()) return std::nullopt;
  return at->asDouble();
}

std::string text_at(const Json::Value& root, const char* key) {
  return root.isObject() && root[key].isString() ? root[key].asString() : "";
}

RunSteps read_steps(const std::string& path, std::int64_t first_of_run) {
  std::ifstream file = open_record(path);
  const JsonReader reader;
  RunSteps steps;
  std::uint64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const bool has_end = !file.eof();
    const std::optional<Json::Value> object = reader.read(line);
    std::string why = "this is no JSON object";
    if (object && object->isObject()) {
      why = add_line(steps, first_of_run, *object);
    } else if (!has_end) {
      steps.last_line_is_cut = true;
      break;
    }
    if (!why.empty())
      throw StorageError(path + ":" + std::to_string(number), "a damaged line: " + why);
  }
  if (file.bad()) throw IoError(EIO, "read", path);
  return steps;
}

Json::Value read_report(const std::string& path) {
  std::optional<Json::Value> report = parse_json(read_regular_file(path, kMostReportBytes));
  if (!report || !report->isObject())
    throw StorageError(path, "is damaged: this is no JSON object");
  return *std::move(report);
}

}  // namespace sluice::cli
