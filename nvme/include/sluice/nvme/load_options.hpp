#pragma once
// LoadOptions: what a Load moves, in which order. Thread-safe: values and free functions without
// state.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace sluice::nvme {

//   read, write   one direction
//   mixed         as many bytes read as written, both always in flight
//   swap          an optimizer step's: read p, m and v of a tile, touch every cache line, write
//   them back
enum class LoadPattern { read, write, mixed, swap };
// The states of an element in the pattern swap: p, m and v.
inline constexpr std::uint64_t kSwapStates = 3;
enum class LoadAccess { sequential, random };

// Throws InvalidArgument naming what is expected, and the nearest name.
LoadPattern parse_load_pattern(std::string_view name);
LoadAccess parse_load_access(std::string_view name);
std::string_view name_of(LoadPattern pattern);
std::string_view name_of(LoadAccess access);

struct LoadOptions {
  LoadPattern pattern = LoadPattern::read;
  // random: one block at a time, anywhere; also for mixed. swap is sequential.
  LoadAccess access = LoadAccess::sequential;
  std::uint64_t size_bytes = 0;  // of the file's beginning, a multiple of 4096 and of the block
  // swap: sizes of the tensors in bytes, one state each; their p, m and v lie in three regions,
  // each tensor from a page on. Empty: tiles that fill the file.
  std::vector<std::uint64_t> tensor_bytes;
  bool verify =
      true;  // compare a sample of what is read with the pattern; not for files of someone else
  std::uint64_t seed = 1;  // of random offsets
};

// For LoadOptions::tensor_bytes: `count` sizes from 1 byte to 64 MiB (in a file of less than 1.5
// GiB, to an eighth of what one state has), spread over all orders of magnitude so that three
// states of them nearly fill `size_bytes` of a file, in a random order that is always the same.
// Throws InvalidArgument when so many tensors are too many or too few for that.
std::vector<std::uint64_t> swap_tensor_sizes(std::size_t count, std::uint64_t size_bytes);

}  // namespace sluice::nvme
