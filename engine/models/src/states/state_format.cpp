#include "sluice/models/state_format.hpp"

#include <algorithm>

#include "sluice/base/bytes.hpp"

namespace sluice::models {

using config::MasterFormat;
using config::MomentFormat;
using cpu_adam::Rule;

namespace {

constexpr std::string_view kMoments[cpu_adam::kMostMoments] = {"moment1", "moment2", "moment3"};

}  // namespace

std::string_view name_of(Rule rule) {
  switch (rule) {
    case Rule::adam:
      return "Adam";
    case Rule::amsgrad:
      return "Adam with amsgrad";
    case Rule::adagrad:
      return "Adagrad";
    case Rule::lion:
      return "Lion";
    case Rule::momentum:
      return "SGD with momentum";
    case Rule::sgd:
      break;
  }
  return "SGD";
}

Rule rule_of(const config::OptimizerConfig& optimizer) {
  switch (optimizer.type) {
    case config::OptimizerType::adam:
    case config::OptimizerType::adamw:
      return optimizer.amsgrad ? Rule::amsgrad : Rule::adam;
    case config::OptimizerType::adagrad:
      return Rule::adagrad;
    case config::OptimizerType::lion:
      return Rule::lion;
    case config::OptimizerType::sgd:
      break;
  }
  return optimizer.momentum > 0 ? Rule::momentum : Rule::sgd;
}

StatePart StateFormat::part(std::size_t index) const {
  if (index >= first_moment()) {
    return {kMoments[index - first_moment()],
            moments == MomentFormat::bf16 ? sizeof(Bf16) : sizeof(float)};
  }
  if (!is_split()) return {"master", sizeof(float)};
  return index == 0 ? StatePart{"weight", sizeof(Bf16)} : StatePart{"low", sizeof(std::uint16_t)};
}

std::size_t StateFormat::element_bytes() const {
  std::size_t sum = 0;
  for (std::size_t i = 0; i < part_count(); ++i) sum += part(i).element_bytes;
  return sum;
}

std::uint64_t StateFormat::granularity_count() const {
  std::size_t least = part(0).element_bytes;
  for (std::size_t i = 1; i < part_count(); ++i) least = std::min(least, part(i).element_bytes);
  return offload::kChecksumChunkBytes / least;
}

StateFormat state_format(const config::TrainConfig& config) {
  const config::SluiceConfig& sluice = config.sluice;
  const bool is_bf16 = config.compute_dtype() == DType::bf16;
  return {sluice.master.value_or(is_bf16 ? MasterFormat::split : MasterFormat::fp32),
          sluice.moments.value_or(MomentFormat::fp32), rule_of(config.optimizer)};
}

std::string shard_name(const zero::UnitLayout& unit, const StatePart& part) {
  return unit.name + "/" + std::string(part.name);
}

std::vector<offload::ShardSpec> state_shards(const std::vector<zero::UnitLayout>& units,
                                             const StateFormat& format, int world_size) {
  std::vector<offload::ShardSpec> shards;
  for (const zero::UnitLayout& unit : units) {
    if (unit.frozen) continue;
    const std::uint64_t count = zero::shard_range(unit, 0, world_size).count;
    for (std::size_t i = 0; i < format.part_count(); ++i) {
      const StatePart part = format.part(i);
      shards.push_back({shard_name(unit, part), checked_mul(count, part.element_bytes)});
    }
  }
  return shards;
}

}  // namespace sluice::models
