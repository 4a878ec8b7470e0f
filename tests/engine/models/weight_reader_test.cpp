#include "sluice/models/weight_reader.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "file_text.hpp"
#include "message_of.hpp"
#include "sluice/base/error.hpp"
#include "temp_dir.hpp"

namespace sluice::models {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

constexpr const char* kIndex = "model.safetensors.index.json";

// A file of one tensor of two elements.
void write_tensor(const std::string& path, const std::string& name, float value) {
  SafetensorsWriter writer(path, {{name, {2}}}, DType::fp32);
  writer.write_fp32(0, 0, std::vector<float>{value, value + 0.5F});
  writer.finish();
}

// Two files, a.safetensors with "a" and b.safetensors with "b", and an index.
class WeightFolder : public testing::Test {
 protected:
  WeightFolder() {
    write_tensor(file("a.safetensors"), "a", 1.0F);
    write_tensor(file("b.safetensors"), "b", 2.0F);
    write_index(R"("a": "a.safetensors", "b": "b.safetensors")");
  }
  std::string file(const std::string& name) const { return dir_.file(name); }
  void write_index(const std::string& map) const {
    test::write_file(file(kIndex),
                     R"({"metadata": {"total_size": 16}, "weight_map": {)" + map + "}}");
  }
  std::string refusal(const std::string& path) const {
    return sluice::test::message_of<StorageError>([&] { const WeightReader reader(path); });
  }

  const test::TempDir dir_;
};

std::vector<float> values_of(const WeightReader& reader, const std::string& name) {
  std::vector<float> values(2);
  reader.read_fp32(reader.tensors().at(name), 0, values);
  return values;
}

TEST_F(WeightFolder, TensorsOfAllFilesAreReadByTheIndexAndByTheFolder) {
  for (const std::string& path : {file(kIndex), dir_.path()}) {
    const WeightReader reader(path);
    EXPECT_THAT(reader.tensors(), SizeIs(2));
    EXPECT_THAT(values_of(reader, "a"), ElementsAre(1.0F, 1.5F));
    EXPECT_THAT(values_of(reader, "b"), ElementsAre(2.0F, 2.5F));
    EXPECT_EQ(reader.path_of(reader.tensors().at("b")), file("b.safetensors"));
    EXPECT_EQ(reader.file_bytes(), std::filesystem::file_size(file("a.safetensors")) +
                                       std::filesystem::file_size(file("b.safetensors")));
  }
}

TEST_F(WeightFolder, OneFileIsReadAlone) {
  const WeightReader reader(file("b.safetensors"));
  EXPECT_THAT(reader.tensors(), SizeIs(1));
  EXPECT_THAT(values_of(reader, "b"), ElementsAre(2.0F, 2.5F));
}

// As Hugging Face's libraries choose.
TEST_F(WeightFolder, AFileOfAllWeightsComesBeforeAnIndex) {
  write_tensor(file("model.safetensors"), "all", 3.0F);
  const WeightReader reader(dir_.path());
  EXPECT_THAT(reader.tensors(), SizeIs(1));
  EXPECT_THAT(values_of(reader, "all"), ElementsAre(3.0F, 3.5F));
}

TEST_F(WeightFolder, OnlyTensorsOfTheIndexAreRead) {
  write_index(R"("b": "b.safetensors")");
  EXPECT_THAT(WeightReader(dir_.path()).tensors(), SizeIs(1));
}

TEST_F(WeightFolder, AnIndexThatDoesNotFitIsNamed) {
  write_index(R"("a": "a.safetensors", "b": "a.safetensors")");
  EXPECT_THAT(refusal(file(kIndex)), AllOf(HasSubstr("a.safetensors"), HasSubstr("no tensor b")));
  write_index(R"("a": "c.safetensors")");
  EXPECT_THAT(refusal(file(kIndex)), AllOf(HasSubstr(kIndex), HasSubstr("file c.safetensors")));
  for (const char* outside : {"../a.safetensors", "/etc/passwd", "..", ""}) {
    write_index(R"("a": ")" + std::string(outside) + "\"");
    EXPECT_THAT(refusal(file(kIndex)), HasSubstr("names no file of its directory")) << outside;
  }
  write_index(R"("a": 1)");
  EXPECT_THAT(refusal(file(kIndex)), HasSubstr("tensor a"));
  test::write_file(file(kIndex), R"({"weight_map": [)");
  EXPECT_THAT(refusal(file(kIndex)), HasSubstr("the index is no valid JSON"));
  test::write_file(file(kIndex), "{}");
  EXPECT_THAT(refusal(file(kIndex)), HasSubstr("no object \"weight_map\""));
  std::filesystem::resize_file(file(kIndex), 1U << 30U);
  EXPECT_THAT(refusal(file(kIndex)), HasSubstr("far more than such a file takes"));
  std::filesystem::remove(file(kIndex));
  std::filesystem::create_directory(file(kIndex));
  EXPECT_THAT(refusal(dir_.path()), HasSubstr("not a regular file"));
}

TEST_F(WeightFolder, ADamagedFileOfTheIndexIsNamed) {
  test::write_file(file("b.safetensors"), "cut");
  EXPECT_THAT(refusal(dir_.path()), HasSubstr(file("b.safetensors")));
}

TEST(WeightReader, AFolderWithoutWeightsIsRefused) {
  const test::TempDir dir;
  EXPECT_FALSE(is_weight_folder(dir.path()));
  EXPECT_THROW(WeightReader{dir.path()}, InvalidArgument);
}

TEST_F(WeightFolder, IsKnownByItsIndex) {
  EXPECT_TRUE(is_weight_folder(dir_.path()));
  EXPECT_FALSE(is_weight_folder(file("a.safetensors")));
}

}  // namespace
}  // namespace sluice::models
