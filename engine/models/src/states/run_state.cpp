#include "sluice/models/run_state.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <new>
#include <optional>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/json/json_reader.hpp"
#include "sluice/base/json/json_writer.hpp"

namespace sluice::models {

namespace {

// An absent value means fp32: older manifests had one format only.
template <typename Format>
Format parse_format(const Json::Value& value, std::string_view other_name, Format other) {
  const std::string name = value.isNull() ? "fp32" : value.asString();
  SLUICE_CHECK(name == "fp32" || name == other_name, "a format \"" + name + "\" of the states");
  return name == "fp32" ? Format::fp32 : other;
}

// Older manifests, which name no optimizer, are of Adam.
cpu_adam::Rule parse_rule(const Json::Value& value) {
  const std::string name =
      value.isNull() ? std::string(name_of(cpu_adam::Rule::adam)) : value.asString();
  const auto found = std::ranges::find_if(
      cpu_adam::kRules, [&](cpu_adam::Rule rule) { return name_of(rule) == name; });
  SLUICE_CHECK(found != std::end(cpu_adam::kRules),
               "states of an optimizer \"" + name + "\", which this version does not have");
  return *found;
}

Json::Value to_value(const zero::UnitLayout& unit) {
  Json::Value value(Json::objectValue);
  value["name"] = unit.name;
  value["flat_count"] = Json::UInt64(unit.flat_count);
  value["params"] = Json::Value(Json::arrayValue);
  for (const zero::ParamLayout& param : unit.params) {
    Json::Value entry(Json::objectValue);
    entry["name"] = param.name;
    entry["offset"] = Json::UInt64(param.offset_count);
    entry["shape"] = Json::Value(Json::arrayValue);
    for (const std::int64_t dimension : param.shape) entry["shape"].append(Json::Int64(dimension));
    value["params"].append(entry);
  }
  return value;
}

Json::Value to_value(const LossScaleState& state) {
  Json::Value value(Json::objectValue);
  value["scale"] = state.scale;
  value["good_steps"] = Json::Int64(state.good_steps);
  value["hysteresis_left"] = state.hysteresis_left;
  return value;
}

constexpr std::int64_t kNanosecondsPerSecond = 1'000'000'000;

// Older manifests have the second alone: the end of it, since the time is a rounded one.
std::int64_t to_saved_at(const Json::Value& seconds, const Json::Value& nanoseconds) {
  const std::int64_t whole = seconds.asInt64();
  if (whole == 0) return 0;
  const std::int64_t rest =
      nanoseconds.isNull() ? kNanosecondsPerSecond - 1 : nanoseconds.asInt64();
  SLUICE_CHECK(whole > 0 && whole < INT64_MAX / kNanosecondsPerSecond && rest >= 0 &&
                   rest < kNanosecondsPerSecond,
               "it was saved " + std::to_string(whole) + " seconds and " + std::to_string(rest) +
                   " nanoseconds after 1970");
  return whole * kNanosecondsPerSecond + rest;
}

std::optional<LossScaleState> to_loss_scale(const Json::Value& value) {
  if (value.isNull()) return std::nullopt;
  const LossScaleState state{.scale = value["scale"].asDouble(),
                             .good_steps = value["good_steps"].asInt64(),
                             .hysteresis_left = value["hysteresis_left"].asInt()};
  SLUICE_CHECK(std::isfinite(state.scale) && state.scale > 0 && state.good_steps >= 0 &&
                   state.hysteresis_left >= 1,
               "a loss scale of " + std::to_string(state.scale) + " after " +
                   std::to_string(state.good_steps) + " steps, with " +
                   std::to_string(state.hysteresis_left) + " overflows left");
  return state;
}

zero::UnitLayout to_unit(const Json::Value& value) {
  zero::UnitLayout unit;
  unit.name = value["name"].asString();
  for (const Json::Value& entry : value["params"]) {
    std::vector<std::int64_t> shape;
    for (const Json::Value& dimension : entry["shape"]) shape.push_back(dimension.asInt64());
    zero::add_param(unit, entry["name"].asString(), shape);
    SLUICE_CHECK(unit.params.back().offset_count == entry["offset"].asUInt64(),
                 "parameter " + entry["name"].asString() + " lies elsewhere than its shape says");
  }
  const std::uint64_t flat_count = value["flat_count"].asUInt64();
  SLUICE_CHECK(flat_count >= unit.flat_count,
               "unit " + unit.name + " is shorter than its parameters");
  unit.flat_count = flat_count;
  return unit;
}

void check_ranges(const RunState& state) {
  SLUICE_CHECK(!state.units.empty(), "it has no units");
  SLUICE_CHECK(
      state.step >= 0 && state.updates >= 0 && state.updates <= state.step,
      "step " + std::to_string(state.step) + " with " + std::to_string(state.updates) + " updates");
  SLUICE_CHECK(state.order >= state.step, "place " + std::to_string(state.order) +
                                              " in its line at step " + std::to_string(state.step));
  SLUICE_CHECK(state.compute_threads >= 1 && state.compute_threads <= 4096,
               std::to_string(state.compute_threads) + " compute threads");
  SLUICE_CHECK(state.world_size >= 1, std::to_string(state.world_size) + " ranks");
}

}  // namespace

std::string to_json(const RunState& state) {
  Json::Value root(Json::objectValue);
  root["line"] = state.line;
  root["order"] = Json::Int64(state.order);
  root["saved_at"] = Json::Int64(state.saved_at / kNanosecondsPerSecond);
  root["saved_at_ns"] = Json::Int64(state.saved_at % kNanosecondsPerSecond);  // of the second
  root["model"] = state.model;
  root["step"] = Json::Int64(state.step);
  root["updates"] = Json::Int64(state.updates);
  root["seed"] = Json::UInt64(state.seed);
  root["compute_dtype"] = state.compute_dtype;
  if (state.loss_scale) root["loss_scale"] = to_value(*state.loss_scale);
  root["master"] = std::string(config::name_of(state.format.master));
  root["moments"] = std::string(config::name_of(state.format.moments));
  root["optimizer"] = std::string(name_of(state.format.rule));
  root["compute_threads"] = state.compute_threads;
  root["world_size"] = state.world_size;
  root["version"] = state.version;
  root["settings"] = Json::Value(Json::objectValue);
  for (const auto& [name, value] : state.settings) root["settings"][name] = value;
  root["units"] = Json::Value(Json::arrayValue);
  for (const zero::UnitLayout& unit : state.units) root["units"].append(to_value(unit));
  return json_line(root);
}

RunState parse_run_state(const std::string& json, const std::string& path) {
  std::string why;
  const Json::Value root = JsonReader(lenient_json()).read(json, &why).value_or(Json::Value());
  if (!root.isObject())
    throw StorageError(path, "the run's description is not a JSON object: " + why);
  try {
    RunState state;
    state.model = root["model"].asString();
    state.step = root["step"].asInt64();
    state.line = root["line"].asString();
    state.order = root.get("order", Json::Int64(state.step)).asInt64();
    state.saved_at = to_saved_at(root["saved_at"], root["saved_at_ns"]);
    state.updates = root["updates"].asInt64();
    state.seed = root["seed"].asUInt64();
    state.compute_dtype = root["compute_dtype"].asString();
    state.loss_scale = to_loss_scale(root["loss_scale"]);
    state.format.master = parse_format(root["master"], "split", config::MasterFormat::split);
    state.format.moments = parse_format(root["moments"], "bf16", config::MomentFormat::bf16);
    state.format.rule = parse_rule(root["optimizer"]);
    state.compute_threads = root["compute_threads"].asInt();
    state.world_size = root["world_size"].asInt();
    state.version = root["version"].asString();
    for (const std::string& name : root["settings"].getMemberNames())
      state.settings[name] = root["settings"][name].asString();
    for (const Json::Value& unit : root["units"]) state.units.push_back(to_unit(unit));
    check_ranges(state);
    return state;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw StorageError(path, std::string("the run's description is damaged: ") + error.what());
  }
}

}  // namespace sluice::models
