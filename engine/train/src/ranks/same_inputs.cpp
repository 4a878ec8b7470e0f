#include "ranks/same_inputs.hpp"

#include <xxhash.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace sluice::train {

namespace {

std::string hash_of(const std::string& text) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(text.data(), text.size())));
  return digits;
}

}  // namespace

void require_same_inputs(RankGroup& ranks, const std::vector<Input>& inputs) {
  constexpr std::size_t kDigits = 16;
  std::string mine;
  for (const Input& input : inputs) mine += hash_of(input.text);
  const std::vector<std::string> all = ranks.exchange(mine, "the hashes of the inputs");
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (all[rank].substr(i * kDigits, kDigits) == all[0].substr(i * kDigits, kDigits)) continue;
      ranks.refuse("rank " + std::to_string(rank) + " has another " + inputs[i].name +
                   " than rank 0: all ranks of a run need the same one");
    }
  }
}

std::string text_of_file(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return path;
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace sluice::train
