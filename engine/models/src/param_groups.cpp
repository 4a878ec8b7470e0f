#include "sluice/models/param_groups.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"

namespace sluice::models {

namespace {

// A parameter with fewer than two dimensions, or whose name ends with "bias".
bool is_bias_or_norm(const zero::ParamLayout& param) {
  return param.shape.size() < 2 || param.name.ends_with("bias");
}

config::OptimizerConfig with_values_of(config::OptimizerConfig optimizer,
                                       const config::GroupConfig& group) {
  const auto set = [](double& value, const std::optional<double>& own) {
    value = own.value_or(value);
  };
  set(optimizer.lr, group.lr);
  set(optimizer.weight_decay, group.weight_decay);
  set(optimizer.beta1, group.beta1);
  set(optimizer.beta2, group.beta2);
  set(optimizer.eps, group.eps);
  set(optimizer.momentum, group.momentum);
  return optimizer;
}

// "h.0.ln_1.weight, h.1.ln_1.weight": names that a mistaken pattern may mean.
std::string near_names(const std::string& pattern, const std::vector<std::string>& names) {
  constexpr std::size_t kMostNames = 3;
  std::string text = pattern;
  std::erase_if(text, [](char c) { return c == '*' || c == '?'; });
  std::vector<std::string> near;
  for (const std::string& name : names) {
    if (near.size() < kMostNames && !text.empty() && name.find(text) != std::string::npos)
      near.push_back(name);
  }
  if (near.empty()) {
    const std::vector<std::string_view> views(names.begin(), names.end());
    const std::string nearest = nearest_name(pattern, views);
    if (!nearest.empty()) near.push_back(nearest);
  }
  if (near.empty() && !names.empty())
    return "the names here are such as " + names.front() + " and " + names.back();
  return "near names are " + join(near, ", ");
}

// The entries of the configuration, and which of them take which parameter.
class Division {
 public:
  Division(const config::TrainConfig& config, const std::vector<zero::UnitLayout>& units)
      : config_(config), units_(units) {}

  void check() const {
    for (std::size_t i = 0; i < entries().size(); ++i)
      for (const std::string& pattern : entries()[i].match) check_pattern(i, pattern);
  }

  ParamGroups divide() {
    // Groups in the order of the entries; the others come last.
    for (const zero::UnitLayout& unit : units_) {
      if (unit.frozen) continue;
      for (const zero::ParamLayout& param : unit.params) kinds_.try_emplace(kind_of(param), 0);
    }
    ParamGroups result;
    for (auto& [kind, number] : kinds_) {
      number = result.groups.size();
      result.groups.push_back(group_of(kind));
    }
    for (const zero::UnitLayout& unit : units_)
      result.segments.push_back(segments_of(unit, result));
    if (result.groups.empty()) result.groups.push_back(group_of({entries().size(), false}));
    return result;
  }

 private:
  // The entry, entries().size() for the others, and whether the weight decay is left out.
  using Kind = std::pair<std::size_t, bool>;

  const std::vector<config::GroupConfig>& entries() const { return config_.groups.entries; }

  std::size_t entry_of(const std::string& name) const {
    const auto found = std::ranges::find_if(entries(), [&](const config::GroupConfig& entry) {
      return std::ranges::any_of(
          entry.match, [&](const std::string& pattern) { return matches(name, pattern); });
    });
    return static_cast<std::size_t>(found - entries().begin());
  }

  Kind kind_of(const zero::ParamLayout& param) const {
    const std::size_t entry = entry_of(param.name);
    const bool sets_decay = entry < entries().size() && entries()[entry].weight_decay;
    return {entry,
            config_.groups.no_decay_of_biases_and_norms && !sets_decay && is_bias_or_norm(param)};
  }

  ParamGroup group_of(const Kind& kind) const {
    const auto& [entry, no_decay] = kind;
    ParamGroup group;
    group.optimizer = config_.optimizer;
    group.name = entries().empty() ? "all" : "the others";
    if (entry < entries().size()) {
      group.name = join(entries()[entry].match, ", ");
      group.optimizer = with_values_of(config_.optimizer, entries()[entry]);
    }
    if (no_decay) {
      group.name += ", biases and norms";
      group.optimizer.weight_decay = 0;
    } else if (kinds_.contains({entry, true})) {
      group.name += ", without biases and norms";
    }
    return group;
  }

  std::vector<GroupSegment> segments_of(const zero::UnitLayout& unit, ParamGroups& result) const {
    std::vector<GroupSegment> segments;
    if (unit.frozen) return segments;
    for (const zero::ParamLayout& param : unit.params) {
      const std::size_t number = kinds_.at(kind_of(param));
      ++result.groups[number].tensors;
      result.groups[number].elements += param.count;
      if (!segments.empty() && segments.back().group == number) continue;
      if (!segments.empty()) segments.back().count = param.offset_count - segments.back().begin;
      segments.push_back({segments.empty() ? 0 : param.offset_count, 0, number});
    }
    if (!segments.empty()) segments.back().count = unit.flat_count - segments.back().begin;
    return segments;
  }

  void check_pattern(std::size_t entry, const std::string& pattern) const {
    std::vector<std::string> names;
    std::size_t taken_by = entries().size();
    for (const zero::UnitLayout& unit : units_) {
      if (unit.frozen) continue;
      for (const zero::ParamLayout& param : unit.params) {
        names.push_back(param.name);
        if (!matches(param.name, pattern)) continue;
        const std::size_t owner = entry_of(param.name);
        if (owner == entry) return;
        taken_by = owner;
      }
    }
    const std::string where =
        "sluice.groups." + std::to_string(entry) + ".match: \"" + pattern + "\" ";
    SLUICE_CHECK(taken_by == entries().size(),
                 where +
                     "matches only parameters that an earlier group has, the first that matches: "
                     "group " +
                     std::to_string(taken_by) + ", \"" + join(entries()[taken_by].match, ", ") +
                     "\"; put the narrower group first");
    throw InvalidArgument(where +
                          "matches no parameter that trains; a pattern is the whole name, \"*\" "
                          "stands for any text (\"*ln_1*\"); " +
                          near_names(pattern, names));
  }

  const config::TrainConfig& config_;
  const std::vector<zero::UnitLayout>& units_;
  std::map<Kind, std::size_t> kinds_;  // those with parameters, and their numbers
};

}  // namespace

// Backtracks to the last "*" only, which suffices for patterns of this kind.
bool matches(std::string_view name, std::string_view pattern) {
  std::size_t at = 0, n = 0;
  std::size_t star = std::string_view::npos, after_star = 0;
  while (n < name.size()) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = at++;
      after_star = n;
    } else if (at < pattern.size() && (pattern[at] == '?' || pattern[at] == name[n])) {
      ++at;
      ++n;
    } else if (star != std::string_view::npos) {
      at = star + 1;
      n = ++after_star;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', at) == std::string_view::npos;
}

ParamGroups make_param_groups(const config::TrainConfig& config,
                              const std::vector<zero::UnitLayout>& units) {
  return Division(config, units).divide();
}

void check_param_groups(const config::TrainConfig& config,
                        const std::vector<zero::UnitLayout>& units) {
  Division(config, units).check();
}

}  // namespace sluice::models
