#pragma once
// UnitLayout: the names and shapes of a unit's parameters, and their offsets in the unit's flat
// buffer. All parameters of a unit are gathered together. A unit of the built-in model is a block,
// the embedding or the head; in a loop of the user's own, it is a module that the user adds.
//
// The flat buffer of a unit holds its parameters one after the other. Each starts at a multiple of
// kParamAlignment elements (64 bytes in 16-bit types), because kernels give different bits for
// different alignments. The end is padded so that the buffer splits evenly over the ranks. Padding
// is zero and stays zero.
//
// Thread-safe: values without state.

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::zero {

inline constexpr std::uint64_t kParamAlignment = 32;
// In 16-bit types, every shard is a whole number of pages (4096 bytes), so direct I/O of its last
// tile needs no bounce buffer.
inline constexpr std::uint64_t kShardAlignment = 2048;

struct ParamLayout {
  std::string name;  // as in a checkpoint, unique in the model
  std::vector<std::int64_t> shape;
  std::uint64_t count = 0;         // elements
  std::uint64_t offset_count = 0;  // in the unit's flat buffer
};

struct UnitLayout {
  std::string name;
  std::vector<ParamLayout> params;
  std::uint64_t param_count = 0;  // elements of all parameters, without padding
  std::uint64_t flat_count = 0;   // elements of the flat buffer, padding included
  bool frozen = false;            // weights only: no gradients, no optimizer states
  // Parameters of other units with which this unit also computes (a tied head uses the
  // embedding's). The unit that has a parameter in `params` owns, updates and saves it.
  struct Borrowed {
    std::size_t unit = 0;   // index of the owner
    std::size_t param = 0;  // index in the owner's params
  };
  std::vector<Borrowed> borrowed;
};

// Appends a parameter, aligned; call finish_layout after the last one. Throws InvalidArgument for a
// dimension below 1, and for more elements than 64 bits count.
void add_param(UnitLayout& layout, std::string name, std::vector<std::int64_t> shape);
// Pads the flat buffer so that it splits into `world_size` equal shards, each a multiple of
// kShardAlignment elements. Throws InvalidArgument for a world size below 1.
void finish_layout(UnitLayout& layout, int world_size);

// Elements [begin, begin + count) of a unit's flat buffer.
struct ShardRange {
  std::uint64_t begin = 0;
  std::uint64_t count = 0;
};
// Those of the parameter among elements [begin, begin + count). A count of 0: there are none.
ShardRange part_in(const ParamLayout& param, std::uint64_t begin, std::uint64_t count);
// Those that `rank` owns. Throws InvalidArgument for a rank outside 0 to world_size - 1, and for a
// layout that does not split into `world_size` shards of whole kShardAlignment elements: it was not
// finished, or for another number of ranks.
ShardRange shard_range(const UnitLayout& layout, int rank, int world_size);
// Elements of each rank's shard. Throws as shard_range().
std::uint64_t shard_count(const UnitLayout& layout, int world_size);

}  // namespace sluice::zero
