#pragma once
// Dataset: training and evaluation data from a file of bytes (vocabulary 256), or of little-endian
// uint16 tokens (.bin). It reads windows, never the whole file. The windows of a step depend on
// seed and step only. No LibTorch.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "sluice/base/fd.hpp"

namespace sluice::models {

// Owns the open file. Thread-safe after construction, hold_out() and evaluate_all().
class Dataset {
 public:
  // Throws InvalidArgument naming the file when it is absent, empty, unreadable, not a regular
  // file, a .bin of odd length, or shorter than `sequence_length` + 1 tokens. Tokens are compared
  // with `vocabulary_size` when a window is read; checksum() compares them all.
  Dataset(const std::string& path, std::uint64_t sequence_length, std::uint64_t vocabulary_size);

  const std::string& path() const { return path_; }
  // Whether the file holds uint16 tokens instead of bytes.
  bool is_tokens() const { return token_bytes_ == sizeof(std::uint16_t); }
  std::uint64_t token_count() const { return token_count_; }
  std::uint64_t size_bytes() const { return token_count_ * token_bytes_; }
  // Reads the whole file. Returns its checksum (XXH3, 16 hexadecimal digits); nothing once `stop`
  // is true, which is looked at for every MiB. Throws InvalidArgument for a token not below the
  // vocabulary size (with its offset), and when the file was truncated meanwhile or cannot be read.
  std::optional<std::string> checksum(const std::atomic<bool>& stop) const;
  // Text that distinguishes files quickly: "1,234 tokens, sample 0123456789abcdef", the length and
  // a checksum of 64 places of 1 KiB spread over the file. Reads the file. Throws InvalidArgument.
  std::string identity() const;
  // Reserves the last `fraction` (0 < fraction < 1) of the tokens for evaluation, the rest for
  // training. Throws InvalidArgument when either part is shorter than a sequence plus one token.
  void hold_out(double fraction);
  // Training uses tokens [0, train_end()), evaluation [eval_begin(), token_count()). Without
  // hold_out(), training uses all tokens and evaluation none.
  std::uint64_t train_end() const { return train_end_; }
  std::uint64_t eval_begin() const { return eval_begin_; }

  // Fills `window` (sequence_length + 1) with a training window: its first sequence_length elements
  // are the inputs, its last sequence_length the targets. The start is drawn uniformly, with
  // replacement, by Philox 4x32-10 keyed by (seed, step, sample). Throws InvalidArgument for
  // another length of `window`, for a token not below the vocabulary size (with its offset), and
  // when the file was truncated meanwhile or cannot be read.
  void draw(std::uint64_t seed, std::int64_t step, std::uint64_t sample,
            std::span<std::int64_t> window) const;

  // Number of evaluation windows, at most `count_limit`; 0 means all. All windows: window i starts
  // at eval_begin() + i * sequence_length, so their inputs do not overlap. A smaller number is
  // spread evenly over them.
  std::uint64_t eval_window_count(std::uint64_t count_limit) const;
  // Fills `window` (sequence_length + 1) with evaluation window `index`, below
  // eval_window_count(count_limit). Throws InvalidArgument as draw(), and for a larger index.
  void eval_window(std::uint64_t index, std::uint64_t count_limit,
                   std::span<std::int64_t> window) const;
  // Makes the whole file the evaluation part, for --eval-data.
  void evaluate_all();

 private:
  void read_tokens(std::uint64_t begin, std::span<std::int64_t> window) const;
  void read_bytes(std::uint64_t offset_bytes, std::span<unsigned char> bytes) const;
  std::uint32_t token_at(std::span<const unsigned char> bytes, std::size_t i) const;
  void check_token(std::uint32_t token, std::uint64_t number) const;
  void check_tokens(std::span<const unsigned char> bytes, std::uint64_t first) const;

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
