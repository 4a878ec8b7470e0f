#pragma once
// UnitLayout: what a unit's parameters are called, how they are shaped and where they lie in the
// unit's flat buffer. A unit is what is gathered together: a transformer block, the embedding, the
// head.
//
// The flat buffer of a unit holds its parameters one after the other, each starting at a multiple
// of kParamAlignment elements (64 bytes in 16-bit types: kernels give other bits for other
// alignments), padded at the end so that it splits evenly over the ranks. Padding is zero and stays
// zero. Thread-safe: values without state.

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::zero {

inline constexpr std::uint64_t kParamAlignment = 32;
// Every shard is whole pages (4096 bytes) in 16-bit types, so that direct I/O of its last tile
// needs no bounce buffer.
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
  // Parameters of other units that this one also computes with (a tied head: the embedding's). They
  // are owned, updated and saved by the unit that has them in `params`.
  struct Borrowed {
    std::size_t unit = 0;   // index of the owner
    std::size_t param = 0;  // index in the owner's params
  };
  std::vector<Borrowed> borrowed;
};

// Appends a parameter after the last one, aligned; call finish_layout when all are in.
void add_param(UnitLayout& layout, std::string name, std::vector<std::int64_t> shape);
// Pads the flat buffer so that it splits into `world_size` shards of whole kShardAlignment
// elements.
void finish_layout(UnitLayout& layout, int world_size);

// Elements [begin, begin + count) of a unit's flat buffer that `rank` owns.
struct ShardRange {
  std::uint64_t begin = 0;
  std::uint64_t count = 0;
};
ShardRange shard_range(const UnitLayout& layout, int rank, int world_size);

}  // namespace sluice::zero
