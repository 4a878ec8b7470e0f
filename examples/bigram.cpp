// The baseline of scripts/demo.sh: predicts each byte from the byte before. Counts pairs of bytes
// in the part of a file that `sluice train --eval-fraction` trains on, and adds one to every count
// (Laplace). Prints two cross-entropies in nats per byte: on the windows of `sluice train
// --eval-windows`, and on the whole rest of the file.

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <vector>

#include "sluice/models/dataset.hpp"

namespace {

constexpr std::size_t kBytes = 256;
using Counts = std::array<std::array<std::uint64_t, kBytes>, kBytes>;

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

// Predictions from the counts of pairs in the training part.
class Bigram {
 public:
  explicit Bigram(std::span<const unsigned char> text) {
    for (std::size_t i = 1; i < text.size(); ++i) {
      ++counts_[text[i - 1]][text[i]];
      ++totals_[text[i - 1]];
    }
  }
  double nats(std::size_t previous, std::size_t next) const {
    return -std::log(static_cast<double>(counts_[previous][next] + 1) /
                     static_cast<double>(totals_[previous] + kBytes));
  }

 private:
  Counts counts_{};
  std::array<std::uint64_t, kBytes> totals_{};
};

double cross_entropy(const Bigram& bigram, const sluice::models::Dataset& data,
                     std::size_t window_length, std::uint64_t window_limit) {
  std::vector<std::int64_t> window(window_length + 1);
  const std::uint64_t count = data.eval_window_count(window_limit);
  double nats = 0;
  for (std::uint64_t w = 0; w < count; ++w) {
    data.eval_window(w, window_limit, window);
    for (std::size_t i = 1; i < window.size(); ++i) {
      nats +=
          bigram.nats(static_cast<std::size_t>(window[i - 1]), static_cast<std::size_t>(window[i]));
    }
  }
  return nats / static_cast<double>(count * window_length);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: bigram FILE HELD_OUT_FRACTION WINDOW_LENGTH WINDOWS\n");
    return 2;
  }
  try {
    const std::size_t window_length = std::strtoul(argv[3], nullptr, 10);
    sluice::models::Dataset data(argv[1], window_length, kBytes);
    data.hold_out(std::strtod(argv[2], nullptr));
    const Bigram bigram(read_file(argv[1], data.train_end()));
    std::printf("%.4f %.4f\n",
                cross_entropy(bigram, data, window_length, std::strtoull(argv[4], nullptr, 10)),
                cross_entropy(bigram, data, window_length, 0));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bigram: %s\n", error.what());
    return 2;
  }
  return 0;
}
