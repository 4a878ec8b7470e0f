// Data of several files, and sequences in epochs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <vector>

#include "data/permutation.hpp"
#include "message_of.hpp"
#include "sluice/base/error.hpp"
#include "sluice/models/dataset.hpp"
#include "temp_dir.hpp"

namespace sluice::models {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kLength = 4;

// Writes `count` bytes that count up from `first`.
std::string write_counting(const test::TempDir& dir, const std::string& name, int first,
                           int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes.push_back(static_cast<char>(first + i));
  std::ofstream(dir.file(name), std::ios::binary) << bytes;
  return dir.file(name);
}

std::vector<std::int64_t> drawn(const Dataset& data, std::int64_t step, std::uint64_t sample,
                                std::uint64_t seed = 1) {
  std::vector<std::int64_t> window(kLength + 1);
  data.draw(seed, step, sample, window);
  for (std::size_t i = 1; i < window.size(); ++i) EXPECT_EQ(window[i], window[i - 1] + 1);
  return window;
}

// First tokens of the sequences of `steps` steps, in order.
std::vector<std::int64_t> read(const Dataset& data, std::int64_t steps, std::uint64_t batch,
                               std::uint64_t seed = 1) {
  std::vector<std::int64_t> firsts;
  for (std::int64_t step = 1; step <= steps; ++step) {
    for (std::uint64_t sample = 0; sample < batch; ++sample)
      firsts.push_back(drawn(data, step, sample, seed).front());
  }
  return firsts;
}

std::string refusal(const std::vector<std::string>& paths) {
  return sluice::test::message_of<InvalidArgument>(
      [&] { const Dataset data(paths, kLength, 256); });
}

TEST(Permutation, HasEachNumberOnce) {
  for (std::uint64_t count = 1; count <= 300; ++count) {
    std::vector<bool> seen(count, false);
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t number = permuted(i, count, 7, count);
      ASSERT_LT(number, count);
      ASSERT_FALSE(seen[number]) << count;
      seen[number] = true;
    }
  }
}

TEST(Permutation, OfManyNumbersStaysBelowTheirCount) {
  for (const std::uint64_t count : {(1ULL << 32U) + 1, (1ULL << 61U) + 12345, 1ULL << 62U}) {
    for (std::uint64_t i = 0; i < 100; ++i) EXPECT_LT(permuted(i, count, 1, 2), count);
  }
}

// Over many seeds each number comes first equally often.
TEST(Permutation, IsUniformOverSeeds) {
  constexpr int kCount = 11;
  constexpr int kSeeds = 22000;
  std::vector<int> counts(kCount, 0);
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) ++counts[permuted(3, kCount, seed, 0)];
  double chi_square = 0;
  for (const int count : counts) {
    const double expected = static_cast<double>(kSeeds) / kCount;
    chi_square += (count - expected) * (count - expected) / expected;
  }
  EXPECT_LT(chi_square, 29.6);  // 10 degrees of freedom: exceeded once in 1000
}

TEST(Epochs, HaveEachSequenceOnceInAnOrderOfTheirOwn) {
  const test::TempDir dir;
  Dataset data(write_counting(dir, "text", 0, 41), kLength, 256);  // 10 sequences
  data.read_in_epochs(5, false);
  EXPECT_EQ(data.epoch_sequences(), 10U);
  EXPECT_EQ(data.steps_of(1), 2);
  EXPECT_EQ(data.steps_of(3), 6);
  std::vector<std::vector<std::int64_t>> orders;
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::int64_t> firsts;
    for (int step = 2 * epoch + 1; step <= 2 * epoch + 2; ++step) {
      for (std::uint64_t sample = 0; sample < 5; ++sample)
        firsts.push_back(drawn(data, step, sample).front());
    }
    orders.push_back(firsts);
    std::sort(firsts.begin(), firsts.end());
    for (std::size_t i = 0; i < firsts.size(); ++i)
      EXPECT_EQ(firsts[i], static_cast<std::int64_t>(i * kLength));
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
  EXPECT_NE(orders[0], read(data, 2, 5, /*seed=*/2));
}

TEST(Epochs, GoOnInTheirMiddleWhateverTheStepHolds) {
  const test::TempDir dir;
  Dataset data(write_counting(dir, "text", 0, 41), kLength, 256);
  data.read_in_epochs(4, false);  // 2.5 steps an epoch
  EXPECT_EQ(data.steps_of(1), 2);
  EXPECT_EQ(data.steps_of(2), 5);
  std::vector<std::int64_t> firsts = read(data, 5, 4);
  for (const auto begin : {firsts.begin(), firsts.begin() + 10}) {
    std::sort(begin, begin + 10);
    for (std::int64_t i = 0; i < 10; ++i) EXPECT_EQ(begin[i], i * 4);
  }
}

// The ranks take turns at the sequences of a step. Together they read the step's, so an epoch that
// goes on with another number of ranks still has each sequence once.
TEST(Epochs, HaveEachSequenceOnceOverChangingNumbersOfRanks) {
  const test::TempDir dir;
  Dataset data(write_counting(dir, "a.txt", 0, 161), kLength, 256);  // 40 sequences
  constexpr std::uint64_t kBatch = 8;
  data.read_in_epochs(kBatch, false);
  const std::vector<std::uint64_t> ranks_of_step = {4, 4, 1, 2, 8};
  ASSERT_EQ(data.steps_of(1), std::ssize(ranks_of_step));
  std::vector<std::int64_t> firsts;
  for (std::size_t step = 0; step < ranks_of_step.size(); ++step) {
    const std::uint64_t ranks = ranks_of_step[step];
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
      for (std::uint64_t sample = rank; sample < kBatch; sample += ranks)
        firsts.push_back(drawn(data, static_cast<std::int64_t>(step) + 1, sample).front());
    }
  }
  std::sort(firsts.begin(), firsts.end());
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < 40; ++i) all.push_back(i * static_cast<std::int64_t>(kLength));
  EXPECT_EQ(firsts, all);
}

TEST(Epochs, EndWithTheirLastWholeBatchWithDropLast) {
  const test::TempDir dir;
  Dataset data(write_counting(dir, "text", 0, 41), kLength, 256);
  data.read_in_epochs(4, true);
  EXPECT_EQ(data.epoch_sequences(), 8U);
  EXPECT_EQ(data.steps_of(3), 6);
  std::vector<std::int64_t> firsts = read(data, 2, 4);
  std::sort(firsts.begin(), firsts.end());
  EXPECT_EQ(std::adjacent_find(firsts.begin(), firsts.end()), firsts.end());
}

TEST(Epochs, NeedAWholeBatch) {
  const test::TempDir dir;
  Dataset data(write_counting(dir, "text", 0, 41), kLength, 256);
  EXPECT_THROW(data.read_in_epochs(11, false), InvalidArgument);
}

TEST(Epochs, LeaveTheHeldOutPartAlone) {
  const test::TempDir dir;
  Dataset data(write_counting(dir, "text", 0, 100), kLength, 256);
  data.hold_out(0.5);
  data.read_in_epochs(2, false);
  EXPECT_EQ(data.epoch_sequences(), 12U);
  for (std::int64_t step = 1; step <= 12; ++step) EXPECT_LT(drawn(data, step, 0).back(), 50);
}

// No window lies in two files, and each place of each file is drawn.
TEST(SeveralFiles, AreReadAsOneDataSetWithoutWindowsAcross) {
  const test::TempDir dir;
  const std::vector<std::string> paths = {write_counting(dir, "a", 0, 8),
                                          write_counting(dir, "short", 50, 4),
                                          write_counting(dir, "b", 100, 13)};
  Dataset data(paths, kLength, 256);
  EXPECT_EQ(data.token_count(), 25U);
  EXPECT_EQ(data.short_files(), 1U);
  EXPECT_EQ(data.name(), paths[0] + " and 2 more files");
  std::vector<int> seen(256, 0);
  for (std::uint64_t sample = 0; sample < 2000; ++sample)
    ++seen[static_cast<std::size_t>(drawn(data, 1, sample).front())];
  for (std::size_t first = 0; first < seen.size(); ++first)
    EXPECT_EQ(seen[first] > 0, first < 4 || (first >= 100 && first < 109)) << first;
  data.read_in_epochs(4, false);
  std::vector<std::int64_t> firsts = read(data, 1, 4);
  std::sort(firsts.begin(), firsts.end());
  EXPECT_THAT(firsts, testing::ElementsAre(0, 100, 104, 108));
}

TEST(SeveralFiles, HoldOutTheLastTokensOfAll) {
  const test::TempDir dir;
  Dataset data({write_counting(dir, "a", 0, 20), write_counting(dir, "b", 100, 20)}, kLength, 256);
  data.hold_out(0.25);
  EXPECT_EQ(data.train_end(), 30U);
  std::vector<std::int64_t> window(kLength + 1);
  ASSERT_EQ(data.eval_window_count(0), 2U);
  data.eval_window(0, 0, window);
  EXPECT_EQ(window.front(), 110);
  for (std::uint64_t sample = 0; sample < 500; ++sample)
    ASSERT_LT(drawn(data, 1, sample).back(), 110);
}

TEST(SeveralFiles, OfAFolderAreThoseOfATokenName) {
  const test::TempDir dir;
  write_counting(dir, "b.txt", 100, 10);
  write_counting(dir, "a.txt", 0, 10);
  write_counting(dir, "README", 50, 10);
  const Dataset data(dir.path(), kLength, 256);
  EXPECT_EQ(data.token_count(), 20U);
  EXPECT_EQ(data.name(), dir.file("a.txt") + " and 1 more file");
}

TEST(SeveralFiles, OfDifferentTokensAreRefused) {
  const test::TempDir dir;
  const std::string bytes = write_counting(dir, "a.txt", 0, 10);
  const std::string tokens = write_counting(dir, "a.bin", 0, 10);
  EXPECT_THAT(refusal({bytes, tokens}), HasSubstr("tokens of 1 and of 2 bytes"));
  EXPECT_THAT(refusal({write_counting(dir, "x", 0, 3), write_counting(dir, "y", 0, 4)}),
              HasSubstr("less than one sequence"));
}

// The order of files counts, and every byte of every file.
TEST(SeveralFiles, AreToldApartByIdentityAndChecksum) {
  const test::TempDir dir;
  const std::string a = write_counting(dir, "a", 0, 20);
  const std::string b = write_counting(dir, "b", 100, 20);
  const std::atomic<bool> go_on{false};
  const Dataset one({a, b}, kLength, 256);
  const Dataset other({b, a}, kLength, 256);
  EXPECT_NE(one.identity(), other.identity());
  EXPECT_NE(one.checksum(go_on), other.checksum(go_on));
  EXPECT_EQ(one.checksum(go_on), Dataset({a, b}, kLength, 256).checksum(go_on));
}

}  // namespace
}  // namespace sluice::models
