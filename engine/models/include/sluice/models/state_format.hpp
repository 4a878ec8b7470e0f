#pragma once
// StateFormat: the parts of the optimizer's states. Each part is a run of bytes of its own: a shard
// on a drive, or an array in memory. No LibTorch. Thread-safe: values and free functions without
// state.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/config/train_config.hpp"
#include "sluice/cpu_adam/step_arguments.hpp"
#include "sluice/offload/swap_store.hpp"
#include "sluice/zero/unit_layout.hpp"

namespace sluice::models {

struct StatePart {
  std::string_view name;  // the last part of its shards' names
  std::size_t element_bytes = 0;
};
inline constexpr std::size_t kMostStateParts = 2 + cpu_adam::kMostMoments;  // with a split master

// "Adam", "Adam with amsgrad", "Adagrad", "Lion", "SGD with momentum", "SGD": for people, and in
// saved files.
std::string_view name_of(cpu_adam::Rule rule);
cpu_adam::Rule rule_of(const config::OptimizerConfig& optimizer);

// The optimizer, and the formats of master and moments. Parts with an fp32 master: master, then
// moment1 and further ones, as many as the optimizer has. Parts with a split master
// (cpu_adam::SplitMaster): weight (the bf16 weight that the model computes with), low (the lower
// halves), then the moments.
struct StateFormat {
  config::MasterFormat master = config::MasterFormat::fp32;
  config::MomentFormat moments = config::MomentFormat::fp32;
  cpu_adam::Rule rule = cpu_adam::Rule::adam;

  bool is_split() const { return master == config::MasterFormat::split; }
  std::size_t part_count() const { return first_moment() + moment_count(rule); }
  // Part `index`, below part_count(), in the order above.
  StatePart part(std::size_t index) const;
  std::size_t first_moment() const { return is_split() ? 2 : 1; }
  // Bytes of one element in all parts together.
  std::size_t element_bytes() const;
  // Elements of the smallest run that is whole checksum chunks in every part.
  std::uint64_t granularity_count() const;

  friend bool operator==(const StateFormat&, const StateFormat&) = default;
};
// The format that the configuration sets, and its optimizer. Defaults: a split master for bf16
// weights, else an fp32 master; fp32 moments.
StateFormat state_format(const config::TrainConfig& config);

// Name of the shard that holds a part of a unit: "UNIT/PART".
std::string shard_name(const zero::UnitLayout& unit, const StatePart& part);
// One rank's shards of all units, unit by unit, part by part. Frozen units have none.
std::vector<offload::ShardSpec> state_shards(const std::vector<zero::UnitLayout>& units,
                                             const StateFormat& format, int world_size);

}  // namespace sluice::models
