#include "sluice/models/dataset.hpp"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>

#include "data/permutation.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"
#include "sluice/models/philox.hpp"

namespace sluice::models {
namespace {

std::string hexadecimal(std::uint64_t value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(value));
  return text.data();
}

// floor(random * count / 2^64): a number below count, uniform to within count / 2^64.
std::uint64_t scale_to(std::uint64_t random, std::uint64_t count) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<Wide>(random) * count) >> 64U);
}

// Appends 1 KiB of the file at each of `places` >= 2 places spread over it, from its first byte to
// its last.
void append_sample(const TokenFile& file, std::uint64_t places,
                   std::vector<unsigned char>& sample) {
  constexpr std::uint64_t kPlaceBytes = 1024;
  const std::uint64_t all_bytes = file.size_bytes();
  std::vector<unsigned char> place(std::min(kPlaceBytes, all_bytes));
  for (std::uint64_t i = 0; i < places; ++i) {
    // all_bytes / 63 * i cannot overflow; the last place ends with the file.
    const std::uint64_t at = (all_bytes - place.size()) / (places - 1) * i;
    file.read_bytes(i + 1 < places ? at : all_bytes - place.size(), place);
    sample.insert(sample.end(), place.begin(), place.end());
  }
}

}  // namespace

Dataset::Dataset(const std::vector<std::string>& files_and_folders, std::uint64_t sequence_length,
                 std::uint64_t vocabulary_size)
    : sequence_length_(sequence_length) {
  SLUICE_CHECK(sequence_length >= 1, "a sequence length of 0");
  std::uint64_t longest = 0;
  for (const std::string& path : token_file_paths(files_and_folders)) {
    const TokenFile& file = files_.emplace_back(path, vocabulary_size);
    SLUICE_CHECK(file.token_bytes() == token_bytes(),
                 "data files " + files_.front().path() + " and " + path + ": tokens of " +
                     std::to_string(token_bytes()) + " and of " +
                     std::to_string(file.token_bytes()) +
                     " bytes: all files of one data set have the same");
    token_count_ += file.token_count();
    longest = std::max(longest, file.token_count());
  }
  SLUICE_CHECK(!files_.empty(), "no data file");
  SLUICE_CHECK(
      longest > sequence_length,
      "data file " + name() + ": " + format_count(longest) +
          " tokens are less than one sequence of " + format_count(sequence_length) +
          " and its last target; give more data, or shorter sequences: their length is n_positions "
          "of the model file");
  train_end_ = eval_begin_ = token_count_;
  set_training(parts_of(0, train_end_));
}

std::string Dataset::name() const {
  const std::size_t more = files_.size() - 1;
  if (more == 0) return files_.front().path();
  return files_.front().path() + " and " + counted(more, "more file");
}

std::size_t Dataset::short_files() const {
  return static_cast<std::size_t>(std::count_if(
      files_.begin(), files_.end(),
      [this](const TokenFile& file) { return file.token_count() <= sequence_length_; }));
}

// The parts of tokens [begin, end), counted over all files, that have a window.
Dataset::Parts Dataset::parts_of(std::uint64_t begin, std::uint64_t end) const {
  Parts parts;
  std::uint64_t first = 0;  // of the file
  for (std::size_t f = 0; f < files_.size(); ++f) {
    const std::uint64_t last = first + files_[f].token_count();
    const std::uint64_t from = std::max(first, begin);
    const std::uint64_t to = std::min(last, end);
    if (to > from && to - from > sequence_length_) parts.push_back({f, from - first, to - from});
    first = last;
  }
  return parts;
}

std::uint64_t Dataset::sequence_count(const Parts& parts) const {
  std::uint64_t count = 0;
  for (const Part& part : parts) count += sequences_of(part);
  return count;
}

void Dataset::hold_out(double fraction) {
  SLUICE_CHECK(fraction > 0 && fraction < 1, "the part of " + name() +
                                                 " held out for evaluation must lie between 0 and "
                                                 "1, not " +
                                                 std::to_string(fraction));
  const auto held =
      static_cast<std::uint64_t>(std::llround(static_cast<double>(token_count_) * fraction));
  const std::uint64_t kept = token_count_ - std::min(held, token_count_);
  Parts train = parts_of(0, kept);
  Parts eval = parts_of(kept, token_count_);
  SLUICE_CHECK(!train.empty() && !eval.empty(),
               "data file " + name() + ": holding out " + std::to_string(fraction) + " of " +
                   format_count(token_count_) + " tokens leaves " + format_count(kept) +
                   " to train on and " + format_count(held) + " to evaluate; each needs at least " +
                   format_count(sequence_length_ + 1) + " of one file");
  set_training(std::move(train));
  eval_ = std::move(eval);
  train_end_ = eval_begin_ = kept;
}

void Dataset::set_training(Parts parts) {
  train_ = std::move(parts);
  train_starts_ = 0;
  for (const Part& part : train_) train_starts_ += starts_of(part);
  train_sequences_ = sequence_count(train_);
}

void Dataset::evaluate_all() {
  eval_begin_ = 0;
  eval_ = parts_of(0, token_count_);
}

void Dataset::read_in_epochs(std::uint64_t batch_size, bool drop_last) {
  const std::uint64_t all = train_sequences_;
  SLUICE_CHECK(all >= batch_size, "data file " + name() + ": its " + format_count(all) +
                                      " sequences of " + format_count(sequence_length_) +
                                      " tokens are less than one batch of " +
                                      format_count(batch_size) +
                                      ", so no step of an epoch is whole; give more data, or a "
                                      "smaller batch, or --steps instead of --epochs");
  batch_size_ = batch_size;
  epoch_sequences_ = drop_last ? all / batch_size * batch_size : all;
}

std::int64_t Dataset::steps_of(std::uint64_t epochs) const {
  __extension__ using Wide = unsigned __int128;
  const Wide steps = static_cast<Wide>(epochs) * epoch_sequences_ / batch_size_;
  SLUICE_CHECK(steps <= static_cast<Wide>(INT64_MAX),
               format_count(epochs) + " epochs of " + format_count(epoch_sequences_) +
                   " sequences are more steps than can be counted (2^63); give fewer");
  return static_cast<std::int64_t>(steps);
}

void Dataset::draw(std::uint64_t seed, std::int64_t step, std::uint64_t sample,
                   std::span<std::int64_t> window) const {
  if (epoch_sequences_ > 0) {
    const std::uint64_t number = static_cast<std::uint64_t>(step - 1) * batch_size_ + sample;
    const std::uint64_t epoch = number / epoch_sequences_;
    const std::uint64_t place = number % epoch_sequences_;
    read_sequence(train_, permuted(place, train_sequences_, seed, epoch), window);
    return;
  }
  const PhiloxStream stream =
      philox_stream(PhiloxDomain::windows, seed, {static_cast<std::uint64_t>(step), sample, 0, 0});
  const PhiloxBlock block = stream.block(0);
  const std::uint64_t random = (static_cast<std::uint64_t>(block[1]) << 32U) | block[0];
  read_start(scale_to(random, train_starts_), window);
}

std::uint64_t Dataset::eval_window_count(std::uint64_t count_limit) const {
  const std::uint64_t count = sequence_count(eval_);
  return count_limit == 0 ? count : std::min(count, count_limit);
}

void Dataset::eval_window(std::uint64_t index, std::uint64_t count_limit,
                          std::span<std::int64_t> window) const {
  const std::uint64_t all = eval_window_count(0);
  const std::uint64_t count = eval_window_count(count_limit);
  SLUICE_CHECK(index < count, "evaluation window " + std::to_string(index) + " of " +
                                  std::to_string(count) + " of " + name());
  // floor(index * all / count) without a product that overflows.
  read_sequence(eval_, index * (all / count) + index * (all % count) / count, window);
}

// The window that begins at place `start` of all places of the training part where one may begin.
void Dataset::read_start(std::uint64_t start, std::span<std::int64_t> window) const {
  for (const Part& part : train_) {
    if (start < starts_of(part)) return read(part, start, window);
    start -= starts_of(part);
  }
}

void Dataset::read_sequence(const Parts& parts, std::uint64_t sequence,
                            std::span<std::int64_t> window) const {
  for (const Part& part : parts) {
    if (sequence < sequences_of(part)) return read(part, sequence * sequence_length_, window);
    sequence -= sequences_of(part);
  }
}

void Dataset::read(const Part& part, std::uint64_t offset, std::span<std::int64_t> window) const {
  SLUICE_CHECK(window.size() == sequence_length_ + 1,
               "a window of " + std::to_string(window.size()) + " tokens, expected " +
                   std::to_string(sequence_length_ + 1));
  files_[part.file].read(part.begin + offset, window);
}

std::optional<std::string> Dataset::checksum(const std::atomic<bool>& stop) const {
  constexpr std::uint64_t kPieceBytes = 1U << 20U;
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              &XXH3_freeState);
  SLUICE_CHECK(state != nullptr && XXH3_64bits_reset(state.get()) == XXH_OK,
               "no memory for a checksum");
  for (const TokenFile& file : files_) {
    std::vector<unsigned char> piece(std::min(kPieceBytes, file.size_bytes()));
    for (std::uint64_t at = 0; at < file.size_bytes(); at += piece.size()) {
      if (stop) return std::nullopt;
      const std::span<unsigned char> part(
          piece.data(), std::min<std::uint64_t>(piece.size(), file.size_bytes() - at));
      file.read_bytes(at, part);
      file.check(part, at / file.token_bytes());
      XXH3_64bits_update(state.get(), part.data(), part.size());
    }
  }
  return hexadecimal(XXH3_64bits_digest(state.get()));
}

std::string Dataset::identity() const {
  std::vector<unsigned char> sample;
  for (const TokenFile& file : files_) append_sample(file, files_.size() == 1 ? 64 : 4, sample);
  return format_count(token_count_) + " tokens, sample " +
         hexadecimal(XXH3_64bits(sample.data(), sample.size()));
}

}  // namespace sluice::models
