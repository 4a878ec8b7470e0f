// The baseline of scripts/demo.sh: how well the byte before predicts the next one. Counts pairs of
// bytes in the part of a file that `sluice train --eval-fraction` trains on, adds one to every
// count (Laplace), and prints the cross-entropy on the rest, in nats per byte: what the evaluation
// loss of a byte model is measured in.

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include "sluice/models/dataset.hpp"

namespace {

constexpr std::size_t kBytes = 256;
using Counts = std::array<std::array<std::uint64_t, kBytes>, kBytes>;

// Calls visit(previous, next) for every pair of neighbours in [begin, end).
template <typename Visit>
void for_each_pair(const std::vector<unsigned char>& text, std::uint64_t begin, std::uint64_t end,
                   Visit visit) {
  for (std::uint64_t i = begin + 1; i < end; ++i) visit(text[i - 1], text[i]);
}

std::vector<unsigned char> read_file(const char* path, std::uint64_t size) {
  std::vector<unsigned char> text(size);
  std::FILE* file = std::fopen(path, "rb");
  if (file == nullptr || std::fread(text.data(), 1, text.size(), file) != text.size()) {
    std::perror(path);
    std::exit(2);
  }
  std::fclose(file);
  return text;
}

double cross_entropy(const char* path, double fraction) {
  sluice::models::Dataset data(path, 1, kBytes);
  data.hold_out(fraction);
  const std::vector<unsigned char> text = read_file(path, data.token_count());
  Counts counts{};
  std::array<std::uint64_t, kBytes> totals{};
  for_each_pair(text, 0, data.train_end(), [&](unsigned char previous, unsigned char next) {
    ++counts[previous][next];
    ++totals[previous];
  });
  double nats = 0;
  std::uint64_t pairs = 0;
  for_each_pair(text, data.eval_begin(), data.token_count(),
                [&](unsigned char previous, unsigned char next) {
                  nats -= std::log(static_cast<double>(counts[previous][next] + 1) /
                                   static_cast<double>(totals[previous] + kBytes));
                  ++pairs;
                });
  return nats / static_cast<double>(pairs);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: bigram FILE [HELD_OUT_FRACTION]\n");
    return 2;
  }
  const double fraction = argc == 3 ? std::strtod(argv[2], nullptr) : 0.05;
  try {
    std::printf("%.4f\n", cross_entropy(argv[1], fraction));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bigram: %s\n", error.what());
    return 2;
  }
  return 0;
}
