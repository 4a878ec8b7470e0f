#include "sluice/models/dataset.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include "captured_log.hpp"
#include "message_of.hpp"
#include "sluice/base/error.hpp"
#include "soft_limit.hpp"
#include "temp_dir.hpp"

namespace sluice::models {
namespace {

using testing::HasSubstr;

std::string write_bytes(const test::TempDir& dir, const std::string& name,
                        const std::vector<unsigned char>& bytes) {
  std::string path = dir.file(name);
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  return path;
}

std::string write_tokens(const test::TempDir& dir, const std::string& name,
                         const std::vector<std::uint16_t>& tokens) {
  std::vector<unsigned char> bytes;
  for (const std::uint16_t token : tokens) {
    bytes.push_back(static_cast<unsigned char>(token & 0xFFU));
    bytes.push_back(static_cast<unsigned char>(token >> 8U));
  }
  return write_bytes(dir, name, bytes);
}

std::vector<unsigned char> counting(std::size_t count) {
  std::vector<unsigned char> bytes(count);
  std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(0));
  return bytes;
}

std::string refusal(const std::string& path, std::uint64_t sequence_length,
                    std::uint64_t vocabulary_size) {
  const std::string said = test::message_of<InvalidArgument>(
      [&] { const Dataset data(path, sequence_length, vocabulary_size); });
  EXPECT_THAT(said, HasSubstr(path));
  return said;
}

TEST(Dataset, IsToldFromAnotherByItsIdentity) {
  const test::TempDir dir;
  const auto identity = [&](const std::vector<unsigned char>& bytes) {
    return Dataset(write_bytes(dir, "data.txt", bytes), 4, 256).identity();
  };
  std::vector<unsigned char> bytes = counting(100'000);
  const std::string first = identity(bytes);
  EXPECT_THAT(first, HasSubstr("100,000 tokens, sample "));
  EXPECT_EQ(identity(bytes), first);
  bytes.front() ^= 1U;
  EXPECT_NE(identity(bytes), first);
  bytes.front() ^= 1U;
  bytes.back() ^= 1U;
  EXPECT_NE(identity(bytes), first);
  EXPECT_THAT(identity(counting(7)), HasSubstr("7 tokens"));
}

TEST(Dataset, HasAChecksumOfEveryByte) {
  const test::TempDir dir;
  const std::atomic<bool> go_on = false, stop = true;
  const auto checksum = [&](const std::vector<unsigned char>& bytes) {
    return Dataset(write_bytes(dir, "data.txt", bytes), 4, 256).checksum(go_on);
  };
  std::vector<unsigned char> bytes = counting(3'000'001);  // pieces of a MiB, and a rest
  const std::optional<std::string> first = checksum(bytes);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->size(), 16U);
  EXPECT_EQ(checksum(bytes), first);
  for (const std::size_t at : {std::size_t{0}, std::size_t{1'234'567}, bytes.size() - 1}) {
    bytes[at] ^= 1U;
    EXPECT_NE(checksum(bytes), first);
    bytes[at] ^= 1U;
  }
  EXPECT_EQ(Dataset(write_bytes(dir, "data.txt", bytes), 4, 256).checksum(stop), std::nullopt);
}

TEST(Dataset, ComparesEveryTokenWithTheVocabularyForItsChecksum) {
  const test::TempDir dir;
  const std::atomic<bool> go_on = false;
  std::vector<unsigned char> bytes(3'000'000, 127);
  bytes[2'345'678] = 128;
  const auto refusal_of = [&](const std::string& name, std::uint64_t vocabulary) -> std::string {
    try {
      (void)Dataset(write_bytes(dir, name, bytes), 4, vocabulary).checksum(go_on);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal_of("text", 129), "");
  EXPECT_THAT(refusal_of("text", 128), HasSubstr("token 128 at byte 2,345,678 "));
  EXPECT_EQ(refusal_of("tokens.bin", 127 * 257 + 2), "");
  EXPECT_THAT(refusal_of("tokens.bin", 127 * 257 + 1),
              HasSubstr("token 32640 at byte 2,345,678 (token 1,172,839)"));
}

TEST(Dataset, ReadsBytesAsTokens) {
  const test::TempDir dir;
  Dataset data(write_bytes(dir, "text", counting(100)), 9, 256);
  EXPECT_EQ(data.token_count(), 100U);
  EXPECT_EQ(data.train_end(), 100U);
  std::vector<std::int64_t> window(10);
  for (std::uint64_t sample = 0; sample < 50; ++sample) {
    data.draw(1, 0, sample, window);
    for (std::size_t i = 1; i < window.size(); ++i) ASSERT_EQ(window[i], window[i - 1] + 1);
  }
}

TEST(Dataset, ReadsLittleEndianTokensFromBin) {
  const test::TempDir dir;
  Dataset data(write_tokens(dir, "a.bin", {0x0102, 0xC450, 7}), 2, 50257);
  EXPECT_EQ(data.token_count(), 3U);
  std::vector<std::int64_t> window(3);
  data.draw(5, 3, 1, window);
  EXPECT_EQ(window, (std::vector<std::int64_t>{0x0102, 0xC450, 7}));
}

TEST(Dataset, ReadsLittleEndianTokensFromU32) {
  const test::TempDir dir;
  const std::string path = write_bytes(dir, "a.u32", {1, 2, 3, 0, 0, 0, 1, 0, 7, 0, 0, 0});
  Dataset data(path, 2, 200'000);
  EXPECT_EQ(data.token_count(), 3U);
  EXPECT_EQ(data.size_bytes(), 12U);
  std::vector<std::int64_t> window(3);
  data.draw(5, 3, 1, window);
  EXPECT_EQ(window, (std::vector<std::int64_t>{0x030201, 0x10000, 7}));
  const std::atomic<bool> go_on{false};
  EXPECT_THROW((void)Dataset(path, 2, 0x030201).checksum(go_on), InvalidArgument);
  EXPECT_NO_THROW((void)Dataset(path, 2, 0x030202).checksum(go_on));
  EXPECT_THAT(refusal(write_bytes(dir, "odd.u32", counting(6)), 1, 256),
              HasSubstr("no whole number of uint32"));
}

TEST(Dataset, WhatCannotBeReadIsRefusedByName) {
  const test::TempDir dir;
  EXPECT_THAT(refusal(dir.file("absent"), 4, 256), HasSubstr("No such file"));
  EXPECT_THAT(refusal(dir.path(), 4, 256), HasSubstr("has no file named .bin, .u32 or .txt"));
  EXPECT_THAT(refusal(write_bytes(dir, "empty", {}), 4, 256), HasSubstr("empty is empty"));
  EXPECT_THAT(refusal(write_bytes(dir, "odd.bin", {1, 2, 3}), 1, 256),
              HasSubstr("no whole number of uint16"));
  EXPECT_THAT(refusal(write_bytes(dir, "short", counting(8)), 8, 256),
              testing::AllOf(HasSubstr("less than one sequence of 8"),
                             HasSubstr("n_positions of the model file")));
  EXPECT_THAT(refusal("/dev/null", 4, 256), HasSubstr("not a regular file"));
}

TEST(Dataset, AFolderIsReadWithoutEntriesThatHoldNoTokens) {
  const test::TempDir dir;
  write_bytes(dir, "b.txt", counting(20));
  write_bytes(dir, "empty.txt", {});
  std::filesystem::create_directory(dir.file("a.txt"));
  const test::CapturedLog log;
  EXPECT_EQ(token_file_paths({dir.path()}), (std::vector<std::string>{dir.path() + "/b.txt"}));
  EXPECT_TRUE(log.contains("data folder " + dir.path() +
                           ": left out: a.txt (a folder), empty.txt (empty)"));
  std::filesystem::remove(dir.file("b.txt"));
  EXPECT_THAT(refusal(dir.path(), 4, 256),
              HasSubstr("has no file named .bin, .u32 or .txt but a.txt (a folder), empty.txt "
                        "(empty)"));
}

TEST(Dataset, AFolderWithAnEntryThatMayHoldTokensIsRefusedByItsName) {
  const test::TempDir dir;
  write_bytes(dir, "a.txt", counting(20));
  std::filesystem::create_symlink("/nowhere/shard.txt", dir.file("b.txt"));
  EXPECT_THAT(refusal(dir.path(), 4, 256),
              HasSubstr("data file " + dir.path() +
                        "/b.txt: is a link to /nowhere/shard.txt, "
                        "which does not exist; restore that file, or remove the link"));
  std::filesystem::remove(dir.file("b.txt"));
  ASSERT_EQ(::mkfifo(dir.file("c.txt").c_str(), 0600), 0);
  EXPECT_THAT(refusal(dir.path(), 4, 256),
              HasSubstr("c.txt is not a regular file, which windows are drawn from anywhere in; "
                        "remove it from the data, or copy what it gives into a file"));
}

TEST(Dataset, OfMoreFilesThanMayBeOpenSaysWhichLimitToRaise) {
  const test::TempDir dir;
  for (int i = 0; i < 40; ++i) write_bytes(dir, std::to_string(i) + ".txt", counting(20));
  {
    const test::SoftLimit few(RLIMIT_NOFILE, 30);
    EXPECT_THAT(refusal(dir.path(), 4, 256),
                HasSubstr("A run keeps all its data files open, and this process may open 30 "
                          "files: raise that limit (ulimit -n"));
  }
  EXPECT_NO_THROW((void)Dataset(dir.path(), 4, 256));
}

TEST(Dataset, AFileCutShortWhileInUseIsRefusedByName) {
  const test::TempDir dir;
  const std::string path = write_bytes(dir, "data.txt", counting(100));
  const Dataset data(path, 9, 256);
  std::filesystem::resize_file(path, 5);
  std::vector<std::int64_t> window(10);
  const std::string said = test::message_of<InvalidArgument>([&] { data.draw(1, 1, 0, window); });
  EXPECT_THAT(said, HasSubstr(path));
  EXPECT_THAT(said, HasSubstr("ends at byte 5: another program has cut it short"));
}

TEST(Dataset, ASequenceAndItsLastTargetAreJustEnough) {
  const test::TempDir dir;
  const Dataset data(write_bytes(dir, "just", counting(9)), 8, 256);
  std::vector<std::int64_t> window(9);
  data.draw(0, 0, 0, window);
  EXPECT_EQ(window.front(), 0);
  EXPECT_EQ(window.back(), 8);
}

TEST(Dataset, ATokenBeyondTheVocabularyIsNamedWithItsOffset) {
  const test::TempDir dir;
  const std::string path = write_tokens(dir, "a.bin", {1, 2, 300, 4});
  const Dataset data(path, 3, 300);
  std::vector<std::int64_t> window(4);
  const std::string said = test::message_of<InvalidArgument>([&] { data.draw(0, 0, 0, window); });
  EXPECT_THAT(said, HasSubstr(path));
  EXPECT_THAT(said, HasSubstr("token 300 at byte 4 (token 2)"));
}

TEST(Dataset, BytesNeedNoVocabularyOf256WhenAllAreSmaller) {
  const test::TempDir dir;
  const Dataset data(write_bytes(dir, "small", {1, 2, 3, 1}), 3, 4);
  std::vector<std::int64_t> window(4);
  EXPECT_NO_THROW(data.draw(0, 0, 0, window));
}

TEST(Dataset, WindowsDependOnSeedStepAndSampleOnly) {
  const test::TempDir dir;
  const std::string path = write_bytes(dir, "text", counting(250));
  const Dataset one(path, 4, 256);
  const Dataset two(path, 4, 256);
  const auto start = [](const Dataset& data, std::uint64_t seed, std::int64_t step,
                        std::uint64_t sample) {
    std::vector<std::int64_t> window(5);
    data.draw(seed, step, sample, window);
    return window[0];
  };
  std::vector<std::int64_t> base;
  std::vector<std::int64_t> other_seed;
  std::vector<std::int64_t> other_step;
  for (std::uint64_t sample = 0; sample < 32; ++sample) {
    base.push_back(start(one, 7, 11, sample));
    ASSERT_EQ(base.back(), start(two, 7, 11, sample));
    other_seed.push_back(start(one, 8, 11, sample));
    other_step.push_back(start(one, 7, 12, sample));
  }
  EXPECT_NE(base, other_seed);
  EXPECT_NE(base, other_step);
}

TEST(Dataset, WindowsAreDrawnUniformlyOverAllStarts) {
  const test::TempDir dir;
  const Dataset data(write_bytes(dir, "text", counting(20)), 4, 256);
  constexpr int kDraws = 16000;
  constexpr int kStarts = 16;  // 20 - 4
  std::vector<int> counts(kStarts, 0);
  std::vector<std::int64_t> window(5);
  for (int i = 0; i < kDraws; ++i) {
    data.draw(3, i / 100, static_cast<std::uint64_t>(i % 100), window);
    ++counts.at(static_cast<std::size_t>(window[0]));
  }
  double chi_square = 0;
  for (const int count : counts) {
    const double expected = static_cast<double>(kDraws) / kStarts;
    chi_square += (count - expected) * (count - expected) / expected;
  }
  EXPECT_LT(chi_square, 37.7);  // 15 degrees of freedom: exceeded once in 1000 seeds
}

TEST(Dataset, HeldOutTokensAreNeverTrainedOn) {
  const test::TempDir dir;
  Dataset data(write_bytes(dir, "text", counting(200)), 9, 256);
  EXPECT_EQ(data.eval_window_count(0), 0U);
  data.hold_out(0.25);
  EXPECT_EQ(data.train_end(), 150U);
  std::vector<std::int64_t> window(10);
  std::set<std::int64_t> starts;
  for (std::uint64_t sample = 0; sample < 3000; ++sample) {
    data.draw(1, 1, sample, window);
    ASSERT_LT(window.back(), 150);
    starts.insert(window.front());
  }
  EXPECT_EQ(*starts.begin(), 0);
  EXPECT_EQ(*starts.rbegin(), 140);
}

TEST(Dataset, EvaluationWindowsTileTheHeldOutPart) {
  const test::TempDir dir;
  Dataset data(write_bytes(dir, "text", counting(200)), 9, 256);
  data.hold_out(0.25);
  // 50 tokens: windows start at 0, 9, ... 36 and need 10 tokens each.
  ASSERT_EQ(data.eval_window_count(0), 5U);
  std::vector<std::int64_t> window(10);
  for (std::uint64_t i = 0; i < 5; ++i) {
    data.eval_window(i, 0, window);
    EXPECT_EQ(window.front(), 150 + 9 * static_cast<std::int64_t>(i));
    EXPECT_EQ(window.back(), window.front() + 9);
  }
  EXPECT_THROW(data.eval_window(5, 0, window), InvalidArgument);
}

TEST(Dataset, ALimitSpreadsTheEvaluationWindowsEvenly) {
  const test::TempDir dir;
  Dataset data(write_bytes(dir, "text", counting(101)), 10, 256);
  data.evaluate_all();
  ASSERT_EQ(data.eval_window_count(0), 10U);
  EXPECT_EQ(data.eval_window_count(4), 4U);
  EXPECT_EQ(data.eval_window_count(40), 10U);
  std::vector<std::int64_t> window(11);
  std::vector<std::int64_t> starts;
  for (std::uint64_t i = 0; i < 4; ++i) {
    data.eval_window(i, 4, window);
    starts.push_back(window.front());
  }
  EXPECT_EQ(starts, (std::vector<std::int64_t>{0, 20, 50, 70}));
  EXPECT_THROW(data.eval_window(4, 4, window), InvalidArgument);
}

TEST(Dataset, HoldingOutTooMuchOrTooLittleIsRefused) {
  const test::TempDir dir;
  Dataset data(write_bytes(dir, "text", counting(100)), 9, 256);
  for (const double fraction : {0.0, 1.0, -0.5, 0.05, 0.95}) {
    EXPECT_THROW(data.hold_out(fraction), InvalidArgument) << fraction;
  }
  EXPECT_EQ(data.train_end(), 100U);
  EXPECT_NO_THROW(data.hold_out(0.1));
}

TEST(Dataset, AWindowOfAnotherLengthIsRefused) {
  const test::TempDir dir;
  const Dataset data(write_bytes(dir, "text", counting(100)), 9, 256);
  std::vector<std::int64_t> window(9);
  EXPECT_THROW(data.draw(0, 0, 0, window), InvalidArgument);
}

}  // namespace
}  // namespace sluice::models
