#pragma once
// What the optimizer keeps of a parameter, part by part: each part is a run of bytes of its own (a
// shard on a drive, an array in memory). No LibTorch. Thread-safe: values and free functions
// without state.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/config/train_config.hpp"
#include "sluice/offload/swap_store.hpp"
#include "sluice/zero/unit_layout.hpp"

namespace sluice::models {

struct StatePart {
  std::string_view name;  // ends the name of its shards
  std::size_t element_bytes = 0;
};
inline constexpr std::size_t kMostStateParts = 4;

// fp32 master: master, moment1, moment2. Split master: weight, the 16-bit weight that the model
// computes with; low, the lower halves (cpu_adam::SplitMaster); moment1, moment2.
struct StateFormat {
  config::MasterFormat master = config::MasterFormat::fp32;
  config::MomentFormat moments = config::MomentFormat::fp32;

  bool is_split() const { return master == config::MasterFormat::split; }
  std::size_t part_count() const { return is_split() ? 4 : 3; }
  // In this order, part_count() of them.
  StatePart part(std::size_t index) const;
  std::size_t first_moment() const { return is_split() ? 2 : 1; }
  // Of one element, all parts together.
  std::size_t element_bytes() const;
  // Elements of the smallest run whose every part begins and ends with a chunk that has a checksum.
  std::uint64_t granularity_count() const;

  friend bool operator==(const StateFormat&, const StateFormat&) = default;
};
// What the configuration asks for; where it leaves the choice, a split master for bf16 weights, and
// moments in fp32.
StateFormat state_format(const config::TrainConfig& config);

std::string shard_name(const zero::UnitLayout& unit, const StatePart& part);
// Shards of all units, unit by unit, part by part. Frozen units have none.
std::vector<offload::ShardSpec> state_shards(const std::vector<zero::UnitLayout>& units,
                                             const StateFormat& format, int world_size);

// Reads fp32 master values of a unit from what `store` has committed, and compares checksums.
// `offset_count` is a multiple of granularity_count(), the count too unless it ends the unit.
// `halves`: room for as many bytes as `values` has; used with a split master. Blocks. Throws
// IoError, StorageError.
void read_master(offload::SwapStore& store, const zero::UnitLayout& unit, const StateFormat& format,
                 std::uint64_t offset_count, std::span<float> values, std::span<std::byte> halves);

}  // namespace sluice::models
