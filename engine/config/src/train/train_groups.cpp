#include "train/train_groups.hpp"

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <variant>

#include "sluice/base/text.hpp"
#include "train/optimizer_types.hpp"

namespace sluice::config {

namespace {

constexpr const char* kGroups = "sluice.groups";
constexpr const char* kNoDecay = "sluice.no_decay";
// The pattern, and the values of optimizer.params that a group may have of its own.
constexpr std::string_view kGroupKeys[] = {"match", "lr",  "weight_decay",
                                           "betas", "eps", "momentum"};

// One entry of the list.
class GroupReader {
 public:
  GroupReader(Checker& checker, const OptimizerConfig& optimizer, Json::ArrayIndex index)
      : checker_(checker), optimizer_(optimizer), name_(std::to_string(index)) {}

  GroupConfig read(const Json::Value& entry) {
    GroupConfig group;
    if (!entry.isObject()) {
      fail(entry, "",
           R"(expected an object such as {"match": "*.bias", "weight_decay": 0}, found )" +
               checker_.shown(entry));
      return group;
    }
    for (auto member = entry.begin(); member != entry.end(); ++member)
      read_member(member.name(), *member, group);
    if (!entry.isMember("match"))
      fail(entry, "", R"(needs "match", a pattern of names such as "*.bias")");
    if (entry.isMember("match") && entry.size() == 1)
      fail(entry, "", "sets no value; add one, such as \"weight_decay\": 0");
    return group;
  }

 private:
  void read_member(const std::string& key, const Json::Value& value, GroupConfig& group) {
    if (key == "match") {
      read_match(value, group);
    } else if (!contains(kGroupKeys, key)) {
      fail(value, key,
           "unknown key of a group" + did_you_mean(nearest_name(key, kGroupKeys)) + " (" +
               join(kGroupKeys, ", ") + ")");
    } else if (!has_param(kind_of(optimizer_.type), key)) {
      fail(value, key,
           std::string(name_of(optimizer_.type)) + " has no such parameter; it belongs to " +
               kinds_with(key));
    } else if (key == "betas") {
      read_betas(value, group);
    } else {
      read_number(key, value, group);
    }
  }

  void read_match(const Json::Value& value, GroupConfig& group) {
    const auto add = [&](const Json::Value& pattern) {
      const bool good = pattern.isString() && !pattern.asString().empty();
      if (good) group.match.push_back(pattern.asString());
      return good;
    };
    bool all_good = true;
    if (value.isArray()) {
      for (const Json::Value& pattern : value) all_good = add(pattern) && all_good;
    } else {
      all_good = add(value);
    }
    if (all_good && !group.match.empty()) return;
    fail(value, "match",
         "expected a pattern of names, or a list of patterns, found " + checker_.shown(value));
  }

  void read_betas(const Json::Value& value, GroupConfig& group) {
    const auto valid = [](const Json::Value& beta) {
      return beta.isNumeric() && !beta.isBool() && beta.asDouble() >= 0 && beta.asDouble() < 1;
    };
    if (!value.isArray() || value.size() != 2 || !valid(value[0U]) || !valid(value[1U])) {
      fail(value, "betas", "expected two numbers in [0, 1), found " + checker_.shown(value));
      return;
    }
    group.beta1 = value[0U].asDouble();
    group.beta2 = value[1U].asDouble();
  }

  void read_number(const std::string& key, const Json::Value& value, GroupConfig& group) {
    constexpr double kMost = 1e10;  // as in optimizer.params
    const bool is_number = value.isNumeric() && !value.isBool();
    if (!is_number || value.asDouble() < 0 || value.asDouble() > kMost) {
      fail(value, key, "expected number in [0, 1e10], found " + checker_.shown(value));
      return;
    }
    const double number = value.asDouble();
    if (key == "lr") group.lr = number;
    if (key == "weight_decay") group.weight_decay = number;
    if (key == "eps") group.eps = number;
    if (key != "momentum") {
      if (key == "lr" && optimizer_.lr == 0 && number > 0)
        fail(
            value, key,
            "a group's rate follows the schedule in proportion to optimizer.params.lr, which is 0: "
            "give that a value, and the other groups \"lr\": 0");
      return;
    }
    group.momentum = number;
    // The momentum buffer is a state of every parameter, or of none.
    if ((number > 0) == (optimizer_.momentum > 0)) return;
    fail(value, key,
         number > 0 ? "needs a momentum buffer: give optimizer.params.momentum a value above 0"
                    : "must be above 0, since optimizer.params.momentum is");
  }

  // A problem of a key of the entry; an empty key is the entry itself.
  void fail(const Json::Value& value, const std::string& key, const std::string& message) {
    checker_.add_problem_in(kGroups, value, name_ + (key.empty() ? "" : "." + key), message);
  }

  Checker& checker_;
  const OptimizerConfig& optimizer_;
  const std::string name_;
};

// The rate that the schedule gives of its own, whatever the optimizer's is.
std::optional<double> rate_of(const SchedulerConfig& scheduler) {
  if (const auto* warmup = std::get_if<WarmupLR>(&scheduler)) return warmup->warmup_max_lr;
  if (const auto* decay = std::get_if<WarmupDecayLR>(&scheduler)) return decay->warmup_max_lr;
  return std::nullopt;
}

// A group's rate is scaled with the schedule, which may have another highest rate than expected.
void note_own_rates(Checker& checker, const TrainConfig& config) {
  const std::optional<double> rate = rate_of(config.scheduler);
  const auto& entries = config.groups.entries;
  const auto has_rate = [](const GroupConfig& group) { return group.lr.has_value(); };
  if (!rate || *rate == config.optimizer.lr || std::ranges::none_of(entries, has_rate)) return;
  std::ostringstream text;
  text << "rates of groups are scaled by warmup_max_lr over optimizer.params.lr, " << *rate
       << " over " << config.optimizer.lr;
  checker.add_note(kGroups, text.str());
}

}  // namespace

void read_groups(Checker& checker, TrainConfig& config) {
  std::string no_decay;
  checker.read(kNoDecay, no_decay);
  if (!no_decay.empty())
    config.groups.no_decay_of_biases_and_norms = no_decay == "biases_and_norms";
  if (const Json::Value* groups = checker.find(kGroups)) {
    config.groups.entries.clear();
    for (Json::ArrayIndex i = 0; i < groups->size(); ++i)
      config.groups.entries.push_back(GroupReader(checker, config.optimizer, i).read((*groups)[i]));
  }
  note_own_rates(checker, config);
  if (config.groups.no_decay_of_biases_and_norms && config.optimizer.weight_decay == 0)
    checker.note_without_effect(kNoDecay, "weight_decay is above 0");
}

}  // namespace sluice::config
