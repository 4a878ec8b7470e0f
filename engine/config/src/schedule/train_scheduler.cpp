#include "schedule/train_scheduler.hpp"

#include <algorithm>
#include <utility>

#include "schedule/scheduler_types.hpp"
#include "sluice/base/text.hpp"
#include "sluice/config/lr_schedule.hpp"

namespace sluice::config {

namespace {

constexpr std::string_view kOtherSchedulers[] = {
    "LambdaLR",          "MultiplicativeLR", "CyclicLR",        "OneCycleLR",
    "ReduceLROnPlateau", "SequentialLR",     "ChainedScheduler"};
// Parameters without a default. The section's table cannot say so: gamma has one for StepLR.
constexpr std::pair<std::string_view, std::string_view> kRequired[] = {
    {WarmupDecayLR::kName, "total_num_steps"},
    {WarmupCosineLR::kName, "total_num_steps"},
    {OneCycle::kName, "cycle_min_lr"},
    {OneCycle::kName, "cycle_max_lr"},
    {StepLR::kName, "step_size"},
    {MultiStepLR::kName, "milestones"},
    {ExponentialLR::kName, "gamma"},
    {CosineAnnealingLR::kName, "T_max"},
    {CosineAnnealingWarmRestarts::kName, "T_0"}};

std::string param(std::string_view name) {
  return "scheduler.params." + std::string(name);
}

// Calls f with a default-made schedule of each type, in the order of SchedulerConfig.
template <typename F, std::size_t... kIndices>
void for_each_type(const F& f, std::index_sequence<kIndices...>) {
  (f(std::variant_alternative_t<kIndices + 1, SchedulerConfig>{}), ...);
}
template <typename F>
void for_each_type(const F& f) {
  for_each_type(f, std::make_index_sequence<std::variant_size_v<SchedulerConfig> - 1>());
}

// Schedules as the Hugging Face Trainer names them, and the types with the same shape.
constexpr std::pair<std::string_view, std::string_view> kTrainersNames[] = {
    {"linear", WarmupDecayLR::kName},
    {"cosine", WarmupCosineLR::kName},
    {"constant_with_warmup", WarmupLR::kName},
    {"polynomial", PolynomialLR::kName},
    {"cosine_with_restarts", CosineAnnealingWarmRestarts::kName}};

// The advice for one of these names; empty for any other.
std::string advice_for_trainers_name(const std::string& name) {
  for (const auto& [trainers, type] : kTrainersNames) {
    if (name == trainers)
      return quoted(name) + " is the Trainer's name; write \"" + std::string(type) + "\"";
  }
  return name == "constant" ? quoted(name) + " is the rate without this section: remove it" : "";
}

std::vector<std::string_view> type_names() {
  std::vector<std::string_view> names;
  for (const SchedulerType& type : scheduler_types()) names.push_back(type.name);
  return names;
}

// Reads one parameter; an overload for each kind of member.
template <typename T>
void read_parameter(Checker& checker, const std::string& path, T& out) {
  checker.read(path, out);
}
// DeepSpeed takes a list with the rate of each group of parameters, and there is one group.
void read_parameter(Checker& checker, const std::string& path, double& out) {
  const Json::Value* value = checker.find(path);
  if (value == nullptr || !value->isArray()) return checker.read(path, out);
  const bool is_rate = value->size() == 1 && (*value)[0U].isNumeric() && !(*value)[0U].isBool() &&
                       (*value)[0U].asDouble() >= 0 && (*value)[0U].asDouble() <= 1e10;
  if (is_rate) {
    out = (*value)[0U].asDouble();
  } else {
    checker.add_problem(
        path, "expected a number in [0, 1e10], or a list of one, found " + checker.shown(*value));
  }
}
void read_parameter(Checker& checker, const std::string& path, WarmupType& out) {
  std::string type = "log";
  checker.read(path, type);
  out = type == "log" ? WarmupType::log : WarmupType::linear;
}
void read_parameter(Checker& checker, const std::string& path, std::vector<std::int64_t>& out) {
  const Json::Value* value = checker.find(path);
  if (value == nullptr) return;
  for (const Json::Value& step : *value) {
    if (!step.isInt64() || step.isBool() || step.asInt64() < 0 ||
        step.asInt64() > 1'000'000'000'000'000) {
      checker.add_problem(
          path, "expected a list of steps, integers in [0, 1e15], found " + checker.shown(*value));
      return;
    }
    out.push_back(step.asInt64());
  }
}

void note_short_length(Checker& checker, std::int64_t total, std::int64_t warmup_num_steps) {
  const std::string path = param("total_num_steps");
  if (total >= warmup_num_steps || checker.find(path) == nullptr || checker.wrong(path)) return;
  checker.add_note(path, std::to_string(total) + " is less than warmup_num_steps, " +
                             std::to_string(warmup_num_steps) + ": the warm-up is all there is");
}

// The rate after warm-up is the schedule's own, if the file has one.
void note_own_rate(Checker& checker, std::string_view name, const char* meaning) {
  if (checker.is_auto(param(name)))
    checker.add_note(param(name), "\"auto\" means the optimizer's lr");
  const std::string flag = checker.flag_of("optimizer.params.lr");
  if (flag.empty() || checker.find(param(name)) == nullptr) return;
  if (!checker.flag_of(param(name)).empty()) return;
  checker.add_note(param(name), std::string(meaning) + ", whatever " + flag + " says");
}

// Completes a type that needs more than its parameters; one overload for each such type.
template <typename Schedule>
void complete(Checker&, double, Schedule&) {}

void complete(Checker& checker, double, WarmupLR&) {
  note_own_rate(checker, "warmup_max_lr", "the rate after warm-up");
}
void complete(Checker& checker, double base_lr, WarmupDecayLR& s) {
  note_own_rate(checker, "warmup_max_lr", "the rate after warm-up");
  // The Trainer fills in its learning rate.
  if (checker.is_auto(param("warmup_max_lr"))) s.warmup_max_lr = base_lr;
  note_short_length(checker, s.total_num_steps, s.warmup_num_steps);
}
void complete(Checker& checker, double, WarmupCosineLR& s) {
  note_short_length(checker, s.total_num_steps, s.warmup_num_steps);
}

bool has_betas(const Checker& checker) {
  const Json::Value* const type = checker.find("optimizer.type");
  if (type == nullptr || !type->isString()) return true;
  const std::string name = type->asString();
  return !equal_ignoring_case(name, "SGD") && !equal_ignoring_case(name, "Adagrad");
}

void note_momentum(Checker& checker, const OneCycle& s) {
  if (!s.cycle_momentum) {
    for (const char* key : {"cycle_min_mom", "cycle_max_mom", "decay_mom_rate"})
      checker.note_without_effect(param(key), "cycle_momentum is true");
    return;
  }
  if (!has_betas(checker)) {
    checker.add_note(param("cycle_momentum"),
                     "no effect, since the optimizer has no betas; DeepSpeed cycles nothing else");
    return;
  }
  std::string note = "OneCycle sets the betas: the first cycles with the rate, the second is 0.99";
  if (checker.find("optimizer.params.betas") != nullptr)
    note += ", whatever optimizer.params.betas says";
  checker.add_note(param("cycle_momentum"), note + " (false keeps the optimizer's)");
  if (const std::optional<std::int64_t> last = last_step_of_betas(s))
    checker.add_note(param("decay_mom_rate"), "beta1 grows to 1 after step " +
                                                  std::to_string(*last) +
                                                  ", so a run of more steps is refused");
}
void complete(Checker& checker, double, OneCycle& s) {
  note_own_rate(checker, "cycle_max_lr", "the highest rate");
  if (checker.find(param("cycle_second_step_size")) == nullptr)
    s.cycle_second_step_size = s.cycle_first_step_size;
  if (checker.find(param("cycle_second_stair_count")) == nullptr)
    s.cycle_second_stair_count = s.cycle_first_stair_count;
  if (s.decay_step_size == 0) {
    for (const char* key : {"decay_lr_rate", "decay_mom_rate"})
      checker.note_without_effect(param(key), "decay_step_size is above 0");
  }
  note_momentum(checker, s);
}
void complete(Checker& checker, double, LRRangeTest&) {
  note_own_rate(checker, "lr_range_test_min_lr", "the first rate");
}

void require_parameters(Checker& checker, const SchedulerType& type) {
  for (const std::string_view name : type.required) {
    const std::string path = param(name);
    if (checker.is_auto(path) || checker.find(path) != nullptr || checker.wrong(path)) continue;
    const bool counts_steps = name != "gamma" && !name.starts_with("cycle_");
    checker.add_problem(path, "required by " + std::string(type.name) + "; add \"" +
                                  std::string(name) + "\": " + (counts_steps ? "STEPS" : "VALUE"));
  }
}

// The schedules that have the parameter, joined by " and ".
std::string names_with(std::string_view parameter) {
  std::string text;
  for (const SchedulerType& type : scheduler_types()) {
    if (contains(type.parameters, parameter))
      text += (text.empty() ? "" : " and ") + std::string(type.name);
  }
  return text;
}

void refuse_other_parameters(Checker& checker, const SchedulerType& type) {
  std::vector<std::string_view> refused;
  for (const SchedulerType& other : scheduler_types()) {
    for (const std::string_view name : other.parameters) {
      if (contains(type.parameters, name) || contains(refused, name)) continue;
      refused.push_back(name);
      if (checker.find(param(name)) != nullptr)
        checker.add_problem(
            param(name),
            std::string(type.name) + " has no such parameter; it belongs to " + names_with(name));
    }
  }
}

// Hugging Face's Trainer filled in 0 for a run without warm-up, as it still does in older releases.
template <typename Schedule>
void take_no_warmup(Checker& checker, Schedule& schedule) {
  if (schedule.warmup_num_steps != 0) return;
  schedule.warmup_num_steps = 1;
  checker.add_note(
      param("warmup_num_steps"),
      "0 means 1, the shortest warm-up, as in DeepSpeed until 0.19.6, which refuses 0");
}

template <typename Schedule>
Schedule read_schedule(Checker& checker, double base_lr) {
  Schedule schedule;
  Schedule::visit(schedule, [&](std::string_view name, auto& member) {
    read_parameter(checker, param(name), member);
  });
  if constexpr (requires { schedule.warmup_num_steps; }) take_no_warmup(checker, schedule);
  complete(checker, base_lr, schedule);
  return schedule;
}

}  // namespace

std::vector<SchedulerType> scheduler_types() {
  std::vector<SchedulerType> types;
  for_each_type([&](auto schedule) {
    using Schedule = decltype(schedule);
    SchedulerType& type = types.emplace_back(SchedulerType{Schedule::kName, {}, {}});
    Schedule::visit(schedule,
                    [&](std::string_view name, auto&) { type.parameters.push_back(name); });
    for (const auto& [owner, name] : kRequired)
      if (owner == Schedule::kName) type.required.push_back(name);
  });
  return types;
}

bool is_other_scheduler(std::string_view type) {
  return contains(kOtherSchedulers, type);
}

SchedulerConfig read_scheduler(Checker& checker, const OptimizerConfig& optimizer) {
  if (checker.find("scheduler") == nullptr || checker.wrong("scheduler.type")) return {};
  std::string name;
  checker.read("scheduler.type", name);
  SchedulerConfig config;
  for (const SchedulerType& type : scheduler_types()) {
    if (type.name != name) continue;
    refuse_other_parameters(checker, type);
    require_parameters(checker, type);
    for_each_type([&](auto schedule) {
      using Schedule = decltype(schedule);
      if (Schedule::kName == name) config = read_schedule<Schedule>(checker, optimizer.lr);
    });
    return config;
  }
  if (name.empty()) {
    checker.add_problem("scheduler.type", "required; add for example \"type\": \"WarmupLR\"");
  } else if (is_other_scheduler(name)) {
    checker.add_problem("scheduler.type", quoted(name) + " is not supported; there are " +
                                              join(type_names(), ", ") +
                                              ". Without the section the learning rate is "
                                              "constant");
  } else if (const std::string advice = advice_for_trainers_name(name); !advice.empty()) {
    checker.add_problem("scheduler.type", advice);
  } else {
    checker.add_problem("scheduler.type", unknown_type("scheduler", name, type_names()));
  }
  return config;
}

}  // namespace sluice::config
