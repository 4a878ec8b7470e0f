#pragma once
// Dataset: training and evaluation data from files of tokens (token_file.hpp). It reads windows of
// sequence_length + 1 tokens, never a whole file. No window lies in two files. The windows of a
// step depend on seed, step and batch size only. No LibTorch.
//
// Training reads windows in one of two orders:
//   drawn      (default) each window begins anywhere, drawn with replacement
//   in epochs  the data is cut into sequences that do not overlap; an epoch has each of them once,
//              in an order of its own

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sluice/models/token_file.hpp"

namespace sluice::models {

// Thread-safe after construction, hold_out(), read_in_epochs() and evaluate_all(). Every problem of
// the data throws InvalidArgument that names the file.
class Dataset {
 public:
  // Files and folders, in this order (token_file_paths). A file that is shorter than a window
  // is left out where there are others. Throws when a file cannot be used (TokenFile), when their
  // tokens have different sizes, and when no file has `sequence_length` + 1 tokens. Tokens are
  // compared with `vocabulary_size` when a window is read; checksum() compares them all.
  Dataset(const std::vector<std::string>& files_and_folders, std::uint64_t sequence_length,
          std::uint64_t vocabulary_size);
  Dataset(const std::string& path, std::uint64_t sequence_length, std::uint64_t vocabulary_size)
      : Dataset(std::vector<std::string>{path}, sequence_length, vocabulary_size) {}

  // "a.bin", or "a.bin and 3 more files".
  std::string name() const;
  // 1 (bytes), 2 or 4.
  std::size_t token_bytes() const { return files_.front().token_bytes(); }
  std::uint64_t token_count() const { return token_count_; }
  std::uint64_t size_bytes() const { return token_count_ * token_bytes(); }
  std::size_t file_count() const { return files_.size(); }
  // Files that are shorter than a window.
  std::size_t short_files() const;
  // Reads all files. Returns their checksum (XXH3, 16 hexadecimal digits); nothing once `stop` is
  // true, which is looked at for every MiB. Throws for a token not below the vocabulary size (with
  // its offset), and when a file was truncated meanwhile or cannot be read.
  std::optional<std::string> checksum(const std::atomic<bool>& stop) const;
  // Text that distinguishes data quickly: "1,234 tokens, sample 0123456789abcdef", the length and
  // a checksum of 1 KiB at 64 places of the file, or at 4 of each file. Reads the files.
  std::string identity() const;
  // Reserves the last `fraction` (0 < fraction < 1) of the tokens for evaluation, the rest for
  // training. Throws when either part has no window. Call it before read_in_epochs().
  void hold_out(double fraction);
  // Training uses the tokens before train_end(), counted over all files; evaluation those behind
  // the part that hold_out() left. Without hold_out(), training uses all tokens, evaluation none.
  std::uint64_t train_end() const { return train_end_; }

  // Makes draw() read in epochs, in steps of `batch_size` sequences. A step at the end of an epoch
  // has sequences of the next one too; with `drop_last` an epoch ends with its last whole batch
  // instead, and leaves out sequences that the order of the epoch chooses. Throws when the training
  // part has fewer sequences than a batch.
  void read_in_epochs(std::uint64_t batch_size, bool drop_last);
  // Sequences of an epoch: those of the training part, or its whole batches with drop_last. 0:
  // windows are drawn with replacement.
  std::uint64_t epoch_sequences() const { return epoch_sequences_; }
  // Whole steps in so many epochs. After read_in_epochs().
  std::int64_t steps_of(std::uint64_t epochs) const;

  // Fills `window` (sequence_length + 1) with training window number `sample` of `step` (from 1):
  // its first sequence_length elements are the inputs, its last sequence_length the targets. Drawn:
  // the start is uniform, by Philox 4x32-10 keyed by (seed, step, sample). In epochs: sample must
  // be below the batch size; the order of an epoch is a permutation keyed by (seed, epoch). Throws
  // for another length of `window` and as TokenFile::read.
  void draw(std::uint64_t seed, std::int64_t step, std::uint64_t sample,
            std::span<std::int64_t> window) const;

  // Number of evaluation windows, at most `count_limit`; 0 means all. All windows: the evaluation
  // part cut into sequences that do not overlap. A smaller number is spread evenly over them.
  std::uint64_t eval_window_count(std::uint64_t count_limit) const;
  // Fills `window` (sequence_length + 1) with evaluation window `index`, below
  // eval_window_count(count_limit). Throws as draw(), and for a larger index.
  void eval_window(std::uint64_t index, std::uint64_t count_limit,
                   std::span<std::int64_t> window) const;
  // Makes all data the evaluation part, for --eval-data.
  void evaluate_all();

 private:
  // Tokens of one file, at least a window of them.
  struct Part {
    std::size_t file = 0;
    std::uint64_t begin = 0;
    std::uint64_t count = 0;
  };
  using Parts = std::vector<Part>;

  void set_training(Parts parts);
  Parts parts_of(std::uint64_t begin, std::uint64_t end) const;
  std::uint64_t starts_of(const Part& part) const { return part.count - sequence_length_; }
  std::uint64_t sequences_of(const Part& part) const { return (part.count - 1) / sequence_length_; }
  std::uint64_t sequence_count(const Parts& parts) const;
  void read_start(std::uint64_t start, std::span<std::int64_t> window) const;
  void read_sequence(const Parts& parts, std::uint64_t sequence,
                     std::span<std::int64_t> window) const;
  void read(const Part& part, std::uint64_t offset, std::span<std::int64_t> window) const;

  std::vector<TokenFile> files_;
  std::uint64_t token_count_ = 0;
  std::uint64_t sequence_length_ = 0;
  std::uint64_t train_end_ = 0;
  std::uint64_t eval_begin_ = 0;
  Parts train_;
  Parts eval_;
  std::uint64_t train_starts_ = 0;     // windows that may be drawn
  std::uint64_t train_sequences_ = 0;  // windows that do not overlap
  std::uint64_t batch_size_ = 0;
  std::uint64_t epoch_sequences_ = 0;
};

}  // namespace sluice::models
