#pragma once
// Training and evaluation data: a file read as bytes (vocabulary 256), or as little-endian uint16
// tokens (.bin). Read window by window, never whole. Which windows a step trains on depends on seed
// and step only. No LibTorch.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "sluice/base/fd.hpp"

namespace sluice::models {

// Thread-safe after construction.
class Dataset {
 public:
  // Throws InvalidArgument naming the file: absent, empty, unreadable, a directory, a .bin of odd
  // length, a token that is not below `vocabulary_size` (bytes need at least 256 unless all bytes
  // of the file are smaller: checked while drawing, with the offset), or shorter than one sequence
  // of `sequence_length` + 1 tokens.
  Dataset(const std::string& path, std::uint64_t sequence_length, std::uint64_t vocabulary_size);

  const std::string& path() const { return path_; }
  // uint16 tokens, not bytes.
  bool is_tokens() const { return token_bytes_ == sizeof(std::uint16_t); }
  std::uint64_t token_count() const { return token_count_; }
  // "1,234 tokens, sample 0123456789abcdef": its length, and a checksum of 64 places of 1 KiB
  // spread over it, by which another file is told from it in a moment. Reads the file.
  std::string identity() const;
  // Restricts training to the first part and evaluation to the last `fraction` of the tokens (0 <
  // fraction < 1). Throws InvalidArgument when either part is shorter than one sequence + 1.
  void hold_out(double fraction);
  // [begin, end) in tokens of each part; without hold_out training is everything and evaluation is
  // empty.
  std::uint64_t train_end() const { return train_end_; }
  std::uint64_t eval_begin() const { return eval_begin_; }

  // Tokens of one training window: inputs are the first sequence_length, targets the last
  // sequence_length of `window`, which has sequence_length + 1 elements. Throws InvalidArgument, as
  // eval_window does, when the file has been cut short meanwhile. The start is drawn
  // uniformly with Philox 4x32-10 keyed by (seed, step, sample), with replacement.
  void draw(std::uint64_t seed, std::int64_t step, std::uint64_t sample,
            std::span<std::int64_t> window) const;

  // Evaluation windows do not overlap: window i of a part that begins at `begin` starts at begin +
  // i * sequence_length. `count_limit` windows at most, spread evenly over the part; 0 means all.
  std::uint64_t eval_window_count(std::uint64_t count_limit) const;
  void eval_window(std::uint64_t index, std::uint64_t count_limit,
                   std::span<std::int64_t> window) const;
  // Makes the whole file the evaluation part (for --eval-data).
  void evaluate_all();

 private:
  void read_tokens(std::uint64_t begin, std::span<std::int64_t> window) const;
  void read_bytes(std::uint64_t offset_bytes, std::span<unsigned char> bytes) const;

  std::string path_;
  UniqueFd fd_;
  std::uint64_t token_bytes_ = 1;
  std::uint64_t token_count_ = 0;
  std::uint64_t sequence_length_ = 0;
  std::uint64_t vocabulary_size_ = 0;
  std::uint64_t train_end_ = 0;
  std::uint64_t eval_begin_ = 0;
};

}  // namespace sluice::models
