#include "sluice/models/safetensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "file_text.hpp"
#include "message_of.hpp"
#include "sluice/base/error.hpp"
#include "temp_dir.hpp"

namespace sluice::models {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

// A file built by hand: length, header text, data.
std::string build_file(const test::TempDir& dir, const std::string& header,
                       const std::string& data) {
  std::string path = dir.file("hand.safetensors");
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  const std::uint64_t length = header.size();
  for (unsigned shift = 0; shift < 64; shift += 8) {
    out.put(static_cast<char>((length >> shift) & 0xFFU));
  }
  out << header << data;
  return path;
}

std::vector<float> all_of(const SafetensorsReader& reader, const std::string& name,
                          std::size_t count) {
  std::vector<float> values(count);
  reader.read_fp32(reader.tensors().at(name), 0, values);
  return values;
}

std::string storage_error(const std::string& path) {
  try {
    const SafetensorsReader reader(path);
  } catch (const StorageError& error) {
    EXPECT_EQ(error.path(), path);
    return error.what();
  }
  ADD_FAILURE() << "accepted a damaged file";
  return "";
}

TEST(SafetensorsReader, ReadsAFilePutTogetherByHand) {
  const test::TempDir dir;
  // 1.5 is 3FC00000 in F32, 3FC0 in BF16, 3E00 in F16; -2 is C000 in BF16.
  const std::string header = R"({"__metadata__":{"format":"pt"},)"
                             R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]},)"
                             R"("a":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},)"
                             R"("h":{"dtype":"F16","shape":[],"data_offsets":[8,10]},)"
                             R"("mask":{"dtype":"BOOL","shape":[3],"data_offsets":[10,13]}}   )";
  const std::string data("\x00\x00\xC0\x3F\xC0\x3F\x00\xC0\x00\x3E\x01\x00\x01", 13);
  const SafetensorsReader reader(build_file(dir, header, data));
  ASSERT_EQ(reader.tensors().size(), 3U);
  EXPECT_THAT(reader.skipped(), ElementsAre(Pair("mask", "BOOL")));
  EXPECT_THAT(all_of(reader, "a", 1), ElementsAre(1.5F));
  EXPECT_THAT(all_of(reader, "b", 2), ElementsAre(1.5F, -2.0F));
  EXPECT_THAT(all_of(reader, "h", 1), ElementsAre(1.5F));
  EXPECT_THAT(reader.tensors().at("a").shape, ElementsAre(1, 1));
  EXPECT_EQ(reader.tensors().at("b").dtype, DType::bf16);
}

TEST(SafetensorsReader, ReadsPartsAndRefusesToGoBeyondTheEnd) {
  const test::TempDir dir;
  const SafetensorsReader reader(
      build_file(dir, R"({"b":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]}})",
                 std::string("\x80\x3F\x00\x40\x40\x40", 6)));
  const TensorEntry& tensor = reader.tensors().at("b");
  std::vector<float> two(2);
  reader.read_fp32(tensor, 1, two);
  EXPECT_THAT(two, ElementsAre(2.0F, 3.0F));
  EXPECT_THROW(reader.read_fp32(tensor, 2, two), InvalidArgument);
  EXPECT_THROW(reader.read_fp32(tensor, 4, std::span(two).first(0)), InvalidArgument);
}

TEST(SafetensorsReader, AnAbsentFileIsAnIoError) {
  const test::TempDir dir;
  EXPECT_THROW(SafetensorsReader(dir.file("absent")), IoError);
}

struct Damage {
  const char* header;
  const char* complaint;
};
void PrintTo(const Damage& damage, std::ostream* out) {
  *out << damage.header;
}

class DamagedHeader : public testing::TestWithParam<Damage> {};

TEST_P(DamagedHeader, IsAStorageErrorThatSaysWhatIsWrong) {
  const test::TempDir dir;
  const std::string path = build_file(dir, GetParam().header, std::string(16, '\0'));
  EXPECT_THAT(storage_error(path), HasSubstr(GetParam().complaint));
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, DamagedHeader,
    testing::Values(
        Damage{R"({"a":)", "no valid JSON"}, Damage{"", "no valid JSON"},
        Damage{R"([1,2])", "not a JSON object"},
        Damage{R"({"a":1})", "tensor a: is described by no JSON object"},
        Damage{R"({"a":{"shape":[1],"data_offsets":[0,4]}})", "has no \"dtype\""},
        Damage{R"({"a":{"dtype":"F32","shape":4,"data_offsets":[0,4]}})", "has no \"shape\" list"},
        Damage{R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "dimension"},
        Damage{R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", "dimension"},
        Damage{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", "data_offsets"},
        Damage{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", "data_offsets"},
        Damage{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}})", "leave the file's 16"},
        Damage{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}})",
               "leave the file's 16"},
        Damage{R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})",
               "its shape needs 12 bytes of F32, its data_offsets hold 8"},
        Damage{R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,8]}})",
               "impossible"},
        Damage{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
               R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
               "overlap"},
        Damage{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
               R"("i":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}})",
               "overlap"}));

TEST(SafetensorsReader, AHeaderNestedWithoutEndIsAStorageError) {
  const test::TempDir dir;
  EXPECT_THAT(storage_error(build_file(dir, std::string(100000, '['), "")),
              HasSubstr("no valid JSON"));
}

TEST(SafetensorsReader, ALengthThatTheFileDoesNotHaveIsAStorageError) {
  const test::TempDir dir;
  const std::string good = test::file_text(
      build_file(dir, R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234"));
  const auto damaged = [&](const std::string& bytes) {
    const std::string path = dir.file("damaged");
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    return storage_error(path);
  };
  EXPECT_THAT(damaged(""), HasSubstr("less than the length of a header"));
  EXPECT_THAT(damaged(good.substr(0, 7)), HasSubstr("less than the length of a header"));
  EXPECT_THAT(damaged(good.substr(0, 20)), HasSubstr("claims a header of"));
  EXPECT_THAT(damaged(good.substr(0, good.size() - 1)), HasSubstr("leave the file's 3"));
  EXPECT_THAT(damaged(good + "more"), HasSubstr("4 bytes behind the last tensor belong to none"));
  std::string huge = good;
  huge[7] = '\x7F';
  EXPECT_THAT(damaged(huge), HasSubstr("claims a header of"));
  EXPECT_THAT(storage_error(dir.path()), HasSubstr("not a regular file"));
}

TEST(SafetensorsWriter, TheHeaderIsExactAndDataStartAtEight) {
  const test::TempDir dir;
  const std::string path = dir.file("out.safetensors");
  SafetensorsWriter writer(path, {{"w", {2, 1}}, {"b", {1}}}, DType::bf16);
  writer.write_fp32(1, 0, std::array<float, 1>{-2.0F});
  writer.write_fp32(0, 0, std::array<float, 2>{1.0F, 1.5F});
  EXPECT_FALSE(std::filesystem::exists(path));
  writer.finish();
  const std::string bytes = test::file_text(path);
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), 8);
  EXPECT_EQ(header_bytes % 8, 0U);
  ASSERT_EQ(bytes.size(), 8 + header_bytes + 6);
  std::string header = bytes.substr(8, header_bytes);
  header.resize(header.find_last_not_of(' ') + 1);
  EXPECT_EQ(header, R"({"__metadata__":{"format":"pt"},)"
                    R"("b":{"data_offsets":[4,6],"dtype":"BF16","shape":[1]},)"
                    R"("w":{"data_offsets":[0,4],"dtype":"BF16","shape":[2,1]}})");
  EXPECT_EQ(bytes.substr(8 + header_bytes), std::string("\x80\x3F\xC0\x3F\x00\xC0", 6));
}

TEST(SafetensorsWriter, WhatIsWrittenInPartsIsReadBack) {
  const test::TempDir dir;
  constexpr std::size_t kCount = 150001;  // more than two conversion buffers
  std::vector<float> values(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    values[i] = std::sin(static_cast<float>(i)) * 100.0F;
  }
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    const std::string path = dir.file("parts");
    SafetensorsWriter writer(path, {{"first", {3}}, {"w", {kCount}}}, dtype);
    writer.write_fp32(1, 70000, std::span(values).subspan(70000));
    writer.write_fp32(1, 0, std::span(values).first(70000));
    writer.write_fp32(0, 0, std::span(values).first(3));
    writer.finish();
    const SafetensorsReader reader(path);
    const std::vector<float> back = all_of(reader, "w", kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      const float expected = dtype == DType::fp32   ? values[i]
                             : dtype == DType::bf16 ? to_fp32(to_bf16(values[i]))
                                                    : to_fp32(to_fp16(values[i]));
      ASSERT_EQ(back[i], expected) << name_of(dtype) << " element " << i;
    }
  }
}

TEST(SafetensorsWriter, AnElementThatWasNeverWrittenStopsTheExport) {
  const test::TempDir dir;
  const std::string path = dir.file("out");
  const std::vector<float> values(10, 1.0F);
  {
    SafetensorsWriter writer(path, {{"w", {10}}}, DType::fp32);
    // Twelve elements in all, but element 5 is missing.
    writer.write_fp32(0, 0, std::span(values).first(5));
    writer.write_fp32(0, 2, std::span(values).first(3));
    writer.write_fp32(0, 6, std::span(values).first(4));
    EXPECT_THROW(writer.finish(), InvalidArgument);
    writer.write_fp32(0, 4, std::span(values).first(3));
    EXPECT_NO_THROW(writer.finish());
  }
  EXPECT_EQ(all_of(SafetensorsReader(path), "w", 10), values);
}

TEST(SafetensorsWriter, AnExportThatFailsLeavesNothingAndTouchesNothing) {
  const test::TempDir dir;
  const std::string path = dir.file("out");
  std::ofstream(path) << "what was there";
  {
    SafetensorsWriter writer(path, {{"w", {4}}}, DType::fp32);
    writer.write_fp32(0, 0, std::array<float, 2>{1.0F, 2.0F});
  }
  EXPECT_EQ(test::file_text(path), "what was there");
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    files += entry.is_regular_file() ? 1U : 0U;
  }
  EXPECT_EQ(files, 1U);
}

TEST(SafetensorsWriter, MistakesAreRefused) {
  const test::TempDir dir;
  EXPECT_THROW(SafetensorsWriter(dir.file("x"), {{"w", {1}}, {"w", {2}}}, DType::fp32),
               InvalidArgument);
  EXPECT_THROW(SafetensorsWriter(dir.file("x"), {{"w", {0}}}, DType::fp32), InvalidArgument);
  EXPECT_THROW(SafetensorsWriter(dir.file("x"), {{"w", {-3}}}, DType::fp32), InvalidArgument);
  EXPECT_THAT(sluice::test::message_of<IoError>([&] {
                SafetensorsWriter(dir.file("no/such/folder"), {{"w", {1}}}, DType::fp32);
              }),
              HasSubstr("its folder does not exist; create it first"));
  SafetensorsWriter writer(dir.file("y"), {{"w", {2}}}, DType::fp32);
  const std::array<float, 2> two{1.0F, 2.0F};
  EXPECT_THROW(writer.write_fp32(1, 0, two), InvalidArgument);
  EXPECT_THROW(writer.write_fp32(0, 1, two), InvalidArgument);
  writer.write_fp32(0, 0, two);
  writer.finish();
  EXPECT_THROW(writer.write_fp32(0, 0, two), InvalidArgument);
}

}  // namespace
}  // namespace sluice::models
