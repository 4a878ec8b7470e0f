#pragma once
// LoadOptions: the transfers of a Load and their order. Thread-safe: values and free functions
// without state.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace sluice::nvme {

//   read, write   one direction
//   mixed         reads and writes of equal bytes, both always in flight
//   swap          as an optimizer step: read p, m and v of a tile, touch every cache line, write
//                 p, m and v back
enum class LoadPattern { read, write, mixed, swap };
// Number of states of an element in the pattern swap: p, m and v.
inline constexpr std::uint64_t kSwapStates = 3;
enum class LoadAccess { sequential, random };

// Throw InvalidArgument with the valid names and the nearest one.
LoadPattern parse_load_pattern(std::string_view name);
LoadAccess parse_load_access(std::string_view name);
std::string_view name_of(LoadPattern pattern);
std::string_view name_of(LoadAccess access);

struct LoadOptions {
  LoadPattern pattern = LoadPattern::read;
  // random: one block at a time, anywhere in the file; not for swap.
  LoadAccess access = LoadAccess::sequential;
  // The load uses the first `size_bytes` of the file: a multiple of 4096, at least one block.
  std::uint64_t size_bytes = 0;
  // swap: bytes of one state of each tensor. p, m and v lie in three regions; each tensor begins on
  // a page. Empty: one tensor that fills the regions.
  std::vector<std::uint64_t> tensor_bytes = {};
  // Compare samples of the bytes read with the pattern (BenchPattern). Off for any other file.
  bool verify = true;
  std::uint64_t seed = 1;  // for random offsets
};

// Sizes for LoadOptions::tensor_bytes: `count` sizes from 1 byte to 64 MiB (in a file of less than
// 1.5 GiB, to an eighth of one state's bytes), spread over all orders of magnitude. Three states of
// the tensors nearly fill `size_bytes` of a file. The order is random, and equal in every call.
// Throws InvalidArgument when `count` tensors cannot fill the file, or need more.
std::vector<std::uint64_t> swap_tensor_sizes(std::size_t count, std::uint64_t size_bytes);

}  // namespace sluice::nvme
