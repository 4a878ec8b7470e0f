// Exports of states of any number of ranks, in one file and in several.

#include "sluice/models/export.hpp"

#include <gmock/gmock.h>
#include <json/json.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "file_text.hpp"
#include "in_child.hpp"
#include "message_of.hpp"
#include "rank_states.hpp"
#include "sluice/base/error.hpp"
#include "sluice/models/safetensors.hpp"
#include "states/weight_files.hpp"

namespace sluice::models::test {
namespace {

namespace fs = std::filesystem;
using sluice::test::file_text;
using sluice::test::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Export, MergesTheRanks) {
  TempDir out;
  for (const int ranks : {1, 2, 3}) {
    TempDir dir;
    commit_steps(dir.path(), ranks, 2);
    const ExportResult result =
        export_weights(dir.path(), out.file(std::to_string(ranks)), DType::fp32, {});
    EXPECT_EQ(result.step, 2);
    EXPECT_EQ(result.parameters, 1'003'000U + 77 + 100);
  }
  EXPECT_FALSE(file_text(out.file("1")).empty());
  EXPECT_EQ(file_text(out.file("2")), file_text(out.file("1")));
  EXPECT_EQ(file_text(out.file("3")), file_text(out.file("1")));
}

TEST(Export, RefusesToWriteAmongTheFilesOfARank) {
  TempDir dir;
  commit_steps(dir.path(), 2, 1);
  EXPECT_THROW(export_weights(dir.path(), dir.file("w"), DType::fp32, {}), InvalidArgument);
  EXPECT_THROW(export_weights(dir.path(), dir.file("rank1-of-2/w"), DType::fp32, {}),
               InvalidArgument);
  // Relative, as a user in that folder names it.
  EXPECT_THAT(sluice::test::run_in_child([&]() -> std::string {
                fs::current_path(dir.file("rank1-of-2"));
                export_weights("..", "w", DType::fp32, {});
                return "written";
              }),
              HasSubstr("w: lies in the directory of the run itself"));
}

// In one file, and as the name beside which several would lie.
TEST(Export, RefusesToReplaceAFileOfAnotherRunOrSomethingElseThanWeights) {
  TempDir run;
  TempDir other;
  commit_steps(run.path(), 1, 1);
  commit_steps(other.path(), 2, 2);
  const std::string checkpoint = other.file("step-00000003");
  commit_steps(checkpoint, 1, 3);
  std::ofstream(checkpoint + "/lock") << "1\n";
  const std::string lines = other.file("steps.jsonl");
  std::ofstream(lines) << "{\"step\":1}\n";
  const auto refuse = [&](const std::string& path, const std::string& why) {
    const std::string before = file_text(path);
    for (const std::uint64_t most_bytes : {0U, 720U}) {
      EXPECT_THAT(sluice::test::message_of<InvalidArgument>([&] {
                    export_weights(run.path(), path, {DType::fp32, most_bytes}, {});
                  }),
                  HasSubstr(path + ": " + why));
    }
    EXPECT_EQ(file_text(path), before) << path;
  };
  for (const std::string& path : {other.file("ranks.json"), other.file("rank0-of-2/manifest.json"),
                                  checkpoint + "/manifest.json", checkpoint + "/states.0.swap",
                                  checkpoint + "/states.1.swap", checkpoint + "/lock"})
    refuse(path, "is part of a training run");
  const std::string link = other.file("link");
  fs::create_symlink(checkpoint + "/manifest.json", link);
  refuse(link, "is part of a training run");
  refuse(lines, "holds something else than weights");
  // As a header of weights has it, the ninth byte is "{".
  std::ofstream(lines) << "class A {\n  int precious;\n};\n";
  refuse(lines, "holds something else than weights");
  const std::string shard = other.file("model-00002-of-00002.safetensors");
  std::ofstream(shard) << "{\"not\": \"weights\"}";
  EXPECT_THROW(export_weights(run.path(), other.file("model.safetensors"), {DType::fp32, 720}, {}),
               InvalidArgument);
  EXPECT_FALSE(fs::exists(other.file("model-00001-of-00002.safetensors")));
  // An empty file, and an earlier export in the folder of a checkpoint, are replaced.
  std::ofstream(other.file("model.safetensors")).flush();
  for (const std::string& path : {other.file("model.safetensors"), checkpoint + "/weights"}) {
    export_weights(run.path(), path, DType::fp32, {});
    export_weights(run.path(), path, DType::bf16, {});
  }
}

TEST(Export, RefusesToReplaceAnIndexOfSomethingElse) {
  TempDir run;
  TempDir out;
  commit_steps(run.path(), 1, 1);
  const std::string path = out.file("model.safetensors");
  const std::string index = path + ".index.json";
  const ExportOptions in_two_files{DType::fp32, 720};
  for (const char* const text : {"precious", "[1]", "{\"weights\": {}}", "{\"weight_map\": 1}"}) {
    std::ofstream(index) << text;
    try {
      export_weights(run.path(), path, in_two_files, {});
      ADD_FAILURE() << text << " was replaced";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(index + ": holds something else than an index"));
    }
    EXPECT_EQ(file_text(index), text);
  }
  export_weights(run.path(), path, DType::fp32, {});
  EXPECT_EQ(file_text(index), "{\"weight_map\": 1}") << "one file has no index";
  fs::remove(index);
  fs::create_directory(index);
  EXPECT_THROW(export_weights(run.path(), path, in_two_files, {}), InvalidArgument);
  fs::remove(index);
  for (const char* const text : {"", "{\"weight_map\": {}}"}) {
    std::ofstream(index) << text;
    EXPECT_NO_THROW(export_weights(run.path(), path, in_two_files, {}));
  }
}

TEST(Export, RefusesToReplaceAFileThatCannotBeRead) {
  TempDir dir;
  const std::string path = dir.file("notes");
  std::ofstream(path) << "precious";
  EXPECT_THAT(sluice::test::run_in_child([&]() -> std::string {
                sluice::test::deny(__NR_openat, EACCES);
                WeightFiles(path, {{"t", {1}}}, DType::fp32, 0);
                return "not refused";
              }),
              HasSubstr(path + ": cannot be read (Permission denied), and would be replaced"));
}

TEST(Export, SplitsBySizeWithAnIndex) {
  TempDir dir;
  TempDir out;
  commit_steps(dir.path(), 2, 1);
  const std::string path = out.file("model.safetensors");
  export_weights(dir.path(), path, DType::fp32,
                 {});  // an earlier one, which must not be read again
  const ExportResult result = export_weights(dir.path(), path, {DType::fp32, 720}, {});
  EXPECT_THAT(result.paths, ElementsAre(out.file("model-00001-of-00002.safetensors"),
                                        out.file("model-00002-of-00002.safetensors")));
  EXPECT_FALSE(fs::exists(path));
  std::ifstream file(path + ".index.json");
  Json::Value index;
  file >> index;
  EXPECT_EQ(index["metadata"]["total_size"].asUInt64(), 4 * result.parameters);
  EXPECT_EQ(index["weight_map"].size(), 3U);
  // The large one has a file of its own; the others have 308 and 400 bytes.
  EXPECT_EQ(index["weight_map"]["wide.weight"], "model-00001-of-00002.safetensors");
  EXPECT_EQ(index["weight_map"]["wide.bias"], "model-00002-of-00002.safetensors");
  EXPECT_EQ(index["weight_map"]["small.weight"], "model-00002-of-00002.safetensors");
  const zero::UnitLayout unit = layouts(1)[0];
  const SafetensorsReader reader(result.paths[1]);
  std::vector<float> values(77);
  reader.read_fp32(reader.tensors().at("wide.bias"), 0, values);
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(values[i], value_of(unit, 0, unit.params[1].offset_count + i, 1)) << i;
}

// A file of the second export gets no name, as when the program is killed between two renames.
TEST(Export, LeavesNoIndexOfOldAndNewFilesWhenItIsCutShort) {
  TempDir old_run;
  TempDir new_run;
  TempDir out;
  commit_steps(old_run.path(), 2, 1);
  commit_steps(new_run.path(), 2, 2);
  const std::string path = out.file("model.safetensors");
  const ExportOptions options{DType::fp32, 720};
  const ExportResult old_export = export_weights(old_run.path(), path, options, {});
  const std::string old_first = file_text(old_export.paths[0]);
  const std::string old_second = file_text(old_export.paths[1]);
  const std::string draft = old_export.paths[1] + ".partial-" + std::to_string(::getpid());
  EXPECT_THROW(export_weights(new_run.path(), path, options,
                              [&](std::uint64_t done, std::uint64_t all) {
                                if (done == all) fs::remove(draft);
                              }),
               IoError);
  EXPECT_NE(file_text(old_export.paths[0]), old_first);
  EXPECT_EQ(file_text(old_export.paths[1]), old_second);
  EXPECT_FALSE(fs::exists(path + ".index.json"));
}

// Data that cannot be completed are known of before the first file of an earlier export goes.
TEST(Export, KeepsAnEarlierExportUntilAllIsSynced) {
  TempDir out;
  const std::string path = out.file("model.safetensors");
  const std::vector<TensorSpec> tensors = {{"a", {4}}, {"b", {4}}};
  const std::vector<float> values(4, 1.0F);
  const auto write = [&](float first, std::size_t count) {
    WeightFiles files(path, tensors, DType::fp32, 16);
    files.write_fp32(0, 0, std::vector<float>(4, first));
    files.write_fp32(1, 0, std::span(values).first(count));
    files.finish();
    return files.paths();
  };
  const std::vector<std::string> paths = write(1.0F, 4);
  const std::string first = file_text(paths[0]);
  EXPECT_THROW(write(2.0F, 3), InvalidArgument);
  EXPECT_EQ(file_text(paths[0]), first);
  EXPECT_TRUE(fs::exists(path + ".index.json"));
}

TEST(Export, FitsInOneFileWithoutAnIndex) {
  TempDir dir;
  TempDir out;
  commit_steps(dir.path(), 2, 1);
  const std::string path = out.file("model.safetensors");
  EXPECT_THAT(export_weights(dir.path(), path, {DType::bf16, 1U << 30U}, {}).paths,
              ElementsAre(path));
  EXPECT_FALSE(fs::exists(path + ".index.json"));
}

}  // namespace
}  // namespace sluice::models::test
