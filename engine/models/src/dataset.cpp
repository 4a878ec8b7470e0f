#include "sluice/models/dataset.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"
#include "sluice/models/philox.hpp"

namespace sluice::models {
namespace {

// Opens the data file. Every problem of a data file is the user's mistake (exit code 2), also one
// that shows as errno.
UniqueFd open_data(const std::string& path, std::uint64_t& size_bytes) {
  // O_NONBLOCK: opening a FIFO would otherwise wait for a writer.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  SLUICE_CHECK(fd, "data file " + path + ": cannot be opened: " + std::strerror(errno));
  struct stat info {};
  SLUICE_CHECK(::fstat(fd.get(), &info) == 0,
               "data file " + path + ": cannot be examined: " + std::strerror(errno));
  SLUICE_CHECK(!S_ISDIR(info.st_mode),
               "data file " + path + ": is a directory; give one file (bytes, or .bin tokens)");
  SLUICE_CHECK(
      S_ISREG(info.st_mode),
      "data file " + path + ": is not a regular file, which windows are drawn from anywhere in");
  SLUICE_CHECK(info.st_size > 0, "data file " + path + ": is empty");
  size_bytes = static_cast<std::uint64_t>(info.st_size);
  return fd;
}

bool ends_with_bin(const std::string& path) {
  return path.ends_with(".bin");
}

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

}  // namespace

Dataset::Dataset(const std::string& path, std::uint64_t sequence_length,
                 std::uint64_t vocabulary_size)
    : path_(path), sequence_length_(sequence_length), vocabulary_size_(vocabulary_size) {
  SLUICE_CHECK(sequence_length >= 1, "a sequence length of 0");
  std::uint64_t size_bytes = 0;
  fd_ = open_data(path, size_bytes);
  if (ends_with_bin(path)) {
    token_bytes_ = sizeof(std::uint16_t);
    SLUICE_CHECK(size_bytes % token_bytes_ == 0,
                 "data file " + path + ": " + format_count(size_bytes) +
                     " bytes are no whole number of uint16 tokens (a .bin file holds "
                     "little-endian uint16; other names are read as bytes)");
  }
  token_count_ = size_bytes / token_bytes_;
  SLUICE_CHECK(token_count_ > sequence_length,
               "data file " + path + ": " + format_count(token_count_) +
                   " tokens are less than one sequence of " + format_count(sequence_length) +
                   " and its last target; give more data or a shorter sequence");
  train_end_ = token_count_;
  eval_begin_ = token_count_;
}

void Dataset::hold_out(double fraction) {
  SLUICE_CHECK(fraction > 0 && fraction < 1, "the part of " + path_ +
                                                 " held out for evaluation must lie between 0 and "
                                                 "1, not " +
                                                 std::to_string(fraction));
  const auto held =
      static_cast<std::uint64_t>(std::llround(static_cast<double>(token_count_) * fraction));
  const std::uint64_t needed = sequence_length_ + 1;
  SLUICE_CHECK(held >= needed && token_count_ - held >= needed,
               "data file " + path_ + ": holding out " + std::to_string(fraction) + " of " +
                   format_count(token_count_) + " tokens leaves " +
                   format_count(token_count_ - held) + " to train on and " + format_count(held) +
                   " to evaluate; each needs at least " + format_count(needed));
  train_end_ = token_count_ - held;
  eval_begin_ = train_end_;
}

void Dataset::evaluate_all() {
  eval_begin_ = 0;
}

void Dataset::draw(std::uint64_t seed, std::int64_t step, std::uint64_t sample,
                   std::span<std::int64_t> window) const {
  const PhiloxStream stream =
      philox_stream(PhiloxDomain::windows, seed, {static_cast<std::uint64_t>(step), sample, 0, 0});
  const PhiloxBlock block = stream.block(0);
  const std::uint64_t random = (static_cast<std::uint64_t>(block[1]) << 32U) | block[0];
  // Possible starts: 0 ... train_end - (sequence_length + 1).
  read_tokens(scale_to(random, train_end_ - sequence_length_), window);
}

std::uint64_t Dataset::eval_window_count(std::uint64_t count_limit) const {
  const std::uint64_t tokens = token_count_ - eval_begin_;
  const std::uint64_t count = tokens == 0 ? 0 : (tokens - 1) / sequence_length_;
  return count_limit == 0 ? count : std::min(count, count_limit);
}

void Dataset::eval_window(std::uint64_t index, std::uint64_t count_limit,
                          std::span<std::int64_t> window) const {
  const std::uint64_t all = eval_window_count(0);
  const std::uint64_t count = eval_window_count(count_limit);
  SLUICE_CHECK(index < count, "evaluation window " + std::to_string(index) + " of " +
                                  std::to_string(count) + " of " + path_);
  // floor(index * all / count) without a product that overflows.
  const std::uint64_t spread = index * (all / count) + index * (all % count) / count;
  read_tokens(eval_begin_ + spread * sequence_length_, window);
}

void Dataset::read_tokens(std::uint64_t begin, std::span<std::int64_t> window) const {
  SLUICE_CHECK(window.size() == sequence_length_ + 1,
               "a window of " + std::to_string(window.size()) + " tokens, expected " +
                   std::to_string(sequence_length_ + 1));
  assert(begin + window.size() <= token_count_);
  std::vector<unsigned char> bytes(window.size() * token_bytes_);
  read_bytes(begin * token_bytes_, bytes);
  for (std::size_t i = 0; i < window.size(); ++i) {
    const std::uint32_t token = token_at(bytes, i);
    check_token(token, begin + i);
    window[i] = static_cast<std::int64_t>(token);
  }
}

std::uint32_t Dataset::token_at(std::span<const unsigned char> bytes, std::size_t i) const {
  if (token_bytes_ == 1) return bytes[i];
  return bytes[2 * i] | static_cast<std::uint32_t>(bytes[2 * i + 1]) << 8U;
}

void Dataset::check_token(std::uint32_t token, std::uint64_t number) const {
  SLUICE_CHECK(token < vocabulary_size_,
               "data file " + path_ + ": token " + std::to_string(token) + " at byte " +
                   format_count(number * token_bytes_) + " (token " + format_count(number) +
                   ") is not below the model's vocabulary of " + format_count(vocabulary_size_));
}

// Tokens from number `first` on. The largest token is found first: a loop without branches.
void Dataset::check_tokens(std::span<const unsigned char> bytes, std::uint64_t first) const {
  if (vocabulary_size_ >> (8 * token_bytes_) != 0) return;  // every token is below it
  const std::size_t count = bytes.size() / token_bytes_;
  std::uint32_t largest = 0;
  if (token_bytes_ == 1) {
    for (const unsigned char byte : bytes) largest = std::max<std::uint32_t>(largest, byte);
  } else {
    for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, token_at(bytes, i));
  }
  if (largest < vocabulary_size_) return;
  for (std::size_t i = 0; i < count; ++i) check_token(token_at(bytes, i), first + i);
}

std::optional<std::string> Dataset::checksum(const std::atomic<bool>& stop) const {
  constexpr std::uint64_t kPieceBytes = 1U << 20U;
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              &XXH3_freeState);
  SLUICE_CHECK(state != nullptr && XXH3_64bits_reset(state.get()) == XXH_OK,
               "no memory for a checksum");
  std::vector<unsigned char> piece(std::min(kPieceBytes, size_bytes()));
  for (std::uint64_t at = 0; at < size_bytes(); at += piece.size()) {
    if (stop) return std::nullopt;
    const std::span<unsigned char> part(piece.data(),
                                        std::min<std::uint64_t>(piece.size(), size_bytes() - at));
    read_bytes(at, part);
    check_tokens(part, at / token_bytes_);
    XXH3_64bits_update(state.get(), part.data(), part.size());
  }
  return hexadecimal(XXH3_64bits_digest(state.get()));
}

std::string Dataset::identity() const {
  constexpr std::uint64_t kPlaces = 64;
  constexpr std::uint64_t kPlaceBytes = 1024;
  const std::uint64_t all_bytes = size_bytes();
  std::vector<unsigned char> sample;
  std::vector<unsigned char> place(std::min(kPlaceBytes, all_bytes));
  for (std::uint64_t i = 0; i < kPlaces; ++i) {
    // all_bytes / 63 * i cannot overflow; the last place ends with the file.
    const std::uint64_t at = (all_bytes - place.size()) / (kPlaces - 1) * i;
    read_bytes(i + 1 < kPlaces ? at : all_bytes - place.size(), place);
    sample.insert(sample.end(), place.begin(), place.end());
  }
  return format_count(token_count_) + " tokens, sample " +
         hexadecimal(XXH3_64bits(sample.data(), sample.size()));
}

void Dataset::read_bytes(std::uint64_t offset_bytes, std::span<unsigned char> bytes) const {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::pread(fd_.get(), bytes.data() + done, bytes.size() - done,
                                static_cast<off_t>(offset_bytes + done));
    if (got < 0 && errno == EINTR) continue;
    SLUICE_CHECK(got >= 0, "data file " + path_ + ": cannot be read at byte " +
                               format_count(offset_bytes + done) + ": " + std::strerror(errno));
    SLUICE_CHECK(got > 0, "data file " + path_ + ": ends at byte " +
                              format_count(offset_bytes + done) +
                              ": another program has cut it short while it was in use; restore it");
    done += static_cast<std::size_t>(got);
  }
}

}  // namespace sluice::models
