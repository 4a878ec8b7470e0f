#pragma once
// ParamGroups: which parameter of a model belongs to which parameter group. A unit's flat buffer is
// a row of segments; all elements of a segment belong to one group. The optimizer's values of a
// group may change from step to step; the segments do not. No LibTorch. Thread-safe: values and
// free functions without state.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/config/train_config.hpp"
#include "sluice/zero/unit_layout.hpp"

namespace sluice::models {

// Parameters that share the optimizer's values.
struct ParamGroup {
  std::string name;                   // for people: "*.bias", "the others, biases and norms"
  config::OptimizerConfig optimizer;  // with the group's own values
  std::uint64_t tensors = 0;
  std::uint64_t elements = 0;  // without padding
};

// Elements of a unit's flat buffer.
struct GroupSegment {
  std::uint64_t begin = 0;
  std::uint64_t count = 0;
  std::size_t group = 0;  // index in ParamGroups::groups
};

struct ParamGroups {
  std::vector<ParamGroup> groups;  // at least one, each with parameters, unless all are frozen
  // By unit, the whole flat buffer in order; neighbours belong to different groups. Padding belongs
  // to the group before it. Empty for frozen units.
  std::vector<std::vector<GroupSegment>> segments;

  // The configuration has groups: more than the one of all parameters.
  bool is_divided() const { return groups.size() > 1; }
};

// The groups of the configuration over the parameters of `units`. A parameter belongs to the first
// entry with a pattern that matches its whole name, or to the others. With
// no_decay_of_biases_and_norms, its biases and norms form a group of their own, unless the entry
// sets a weight decay.
ParamGroups make_param_groups(const config::TrainConfig& config,
                              const std::vector<zero::UnitLayout>& units);

// Throws InvalidArgument for a pattern of the configuration that no parameter belongs to: with the
// nearest names, or with the group that has its parameters already.
void check_param_groups(const config::TrainConfig& config,
                        const std::vector<zero::UnitLayout>& units);

// Whether `name` matches `pattern`: "*" stands for any text, also with dots, "?" for one character.
bool matches(std::string_view name, std::string_view pattern);

}  // namespace sluice::models
