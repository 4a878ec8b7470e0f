// `sluice nvme tune` as its users run it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "cli/json_text.hpp"
#include "cli/run_program.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;

class NvmeTune : public ::testing::Test {
 protected:
  ProgramResult tune(std::vector<std::string> more) const {
    std::vector<std::string> arguments = {"nvme", "tune"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_sluice(arguments);
  }
  void expect_refused(int exit_code, const std::string& part, std::vector<std::string> more) const {
    const ProgramResult result = tune(std::move(more));
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(part));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }

  TempDir dir_;
};

TEST_F(NvmeTune, ReplacesNothingButSettings) {
  const std::string out = dir_.file("ds.json");
  for (const std::string text : {
           R"({"train_batch_size": 1, "aio": {"queue_depth": 5}})",
           R"({"sluice": {"checkpoint_dir": "/data/ckpt"}, "aio": {"queue_depth": 5}})",
           R"({"aio": {"overlap_events": true}})",
           R"({"aio": {"queue_depth": 5}, "sluice": {"io": {"drive_weights": [1, 2]}}})",
           R"({"aio": {"queue_depth": {"depth": 5}}})",
           R"({"aio": {"queue_depth": [5]}})",
           "{\"aio\": {\"queue_depth\": 5}}  // measured in May",
       }) {
    write_file(out, text);
    expect_refused(2, "something else than settings",
                   {dir_.path(), "--out", out, "--size", "16MiB"});
    EXPECT_EQ(file_text(out), text);
  }
  for (const std::size_t length : {10'000, 100'000}) {
    write_file(out, std::string(length, '['));
    expect_refused(2, "something else than settings", {dir_.path(), "--out", out});
  }
  EXPECT_FALSE(std::filesystem::exists(dir_.file("bench.sluice")));
}

TEST_F(NvmeTune, WritesSettingsThatAConfigurationTakesUnchanged) {
  const std::string out = dir_.file("tuned.json"), page = dir_.file("tuned.html");
  const ProgramResult result = tune({dir_.path(), "--out", out, "--html", page, "--size", "16MiB",
                                     "--seconds", "5", "--backend", "threads", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  // Both files may be replaced by a later tuning; the size is what is refused.
  expect_refused(2, "is too small to tune on",
                 {dir_.path(), "--out", out, "--html", page, "--size", "64KiB"});
  const Json::Value report = parse_json(result.out);
  EXPECT_LT(report["seconds"].asDouble(), 20);
  EXPECT_GT(report["surface"].size(), 4U) << "as many as the drive had time for";
  const Json::Value& best = report["chosen"];
  EXPECT_GT(best["mixed_GBps"].asDouble(), 0);

  write_file(dir_.file("ds.json"),
             R"({"train_batch_size": 1, "optimizer": {"type": "AdamW"}, "aio": {"queue_depth": 5},
                 "sluice": {"durability": "power", "io": {"backend": "auto"}}})");
  const ProgramResult check = run_sluice({"config", "check", dir_.file("ds.json"), out, "--json"});
  ASSERT_EQ(check.exit_code, 0) << check.err;
  const Json::Value values = parse_json(check.out)["values"];
  EXPECT_EQ(values["aio.block_size"], best["block_size"]);
  EXPECT_EQ(values["aio.queue_depth"], best["queue_depth"]);
  EXPECT_EQ(values["aio.intra_op_parallelism"].asInt(), 8);
  EXPECT_EQ(values["sluice.io.backend"].asString(), "threads");
  EXPECT_EQ(values["sluice.io.reads_per_write"], best["reads_per_write"]);
  EXPECT_EQ(values["sluice.durability"].asString(), "power") << "what the file over it leaves out";

  const std::string html = file_text(page);
  for (const char* part : {"read, GB/s", "write, GB/s", "mixed, GB/s", "</svg>", "reads_per_write"})
    EXPECT_THAT(html, HasSubstr(part));
  EXPECT_THAT(html, ::testing::Not(HasSubstr("http://")));
}

TEST_F(NvmeTune, MistakesAreOneLine) {
  expect_refused(2, "--out", {dir_.path()});
  expect_refused(2, "this is a directory", {dir_.path(), "--out", dir_.path()});
  expect_refused(4, "No such file", {dir_.path(), "--out", dir_.file("none/tuned.json")});
  expect_refused(2, "--seconds: expected 5 to 600",
                 {dir_.path(), "--out", dir_.file("t"), "--seconds", "1"});
  expect_refused(2, "expected at least 128",
                 {dir_.path(), "--out", dir_.file("t"), "--size", "64KiB"});
  write_file(dir_.file("data"), std::string(1 << 20, 'x'));
  expect_refused(2, "add --overwrite", {dir_.file("data"), "--out", dir_.file("t")});
  EXPECT_EQ(file_text(dir_.file("data")), std::string(1 << 20, 'x'));
  EXPECT_FALSE(std::filesystem::exists(dir_.file("t")));
}

TEST_F(NvmeTune, LeavesNoFileAfterAMistakeWhenItIsToCleanUp) {
  const std::vector<std::string> flags = {"--out", dir_.file("t"), "--size", "16MiB", "--clean"};
  const auto with_flags = [&](std::vector<std::string> line) {
    line.insert(line.end(), flags.begin(), flags.end());
    return line;
  };
  const std::string bench_file = dir_.file("bench.sluice");
  expect_refused(4, "absent", with_flags({dir_.path(), dir_.file("absent")}));
  EXPECT_FALSE(std::filesystem::exists(bench_file));
  expect_refused(2, "expected at least 128",
                 {dir_.path(), "--out", dir_.file("t"), "--size", "64KiB", "--clean"});
  EXPECT_FALSE(std::filesystem::exists(bench_file));
  const auto interrupt = [&](std::vector<std::string> line) {
    line.insert(line.begin(), {"/usr/bin/timeout", "--foreground", "--preserve-status", "--signal",
                               "INT", "1", sluice_program(), "nvme", "tune"});
    return run_program(line);
  };
  const ProgramResult stopped = interrupt(with_flags({dir_.path(), "--seconds", "600"}));
  EXPECT_EQ(stopped.exit_code, 130) << stopped.err;
  EXPECT_FALSE(std::filesystem::exists(bench_file));
}

TEST_F(NvmeTune, PagesThatCannotBeWrittenAreRefusedBeforeAnythingIsMeasured) {
  const std::string page = dir_.file("none/page.html");
  const std::string swap = dir_.file("swap");
  std::filesystem::create_directory(swap);
  expect_refused(4, "given as --html", {swap, "--out", dir_.file("t"), "--html", page});
  expect_refused(4, "given as --out", {swap, "--out", dir_.file("absent/"), "--seconds", "600"});
  const ProgramResult bench = run_sluice({"nvme", "bench", swap, "--html", page});
  EXPECT_EQ(bench.exit_code, 4) << bench.err;
  EXPECT_THAT(bench.err, HasSubstr(page));
  EXPECT_TRUE(std::filesystem::is_empty(swap));
  EXPECT_FALSE(std::filesystem::exists(dir_.file("t"))) << "what is only tried is not left";
}

TEST_F(NvmeTune, ASecondConfigurationReplacesOnlyWhatTunesHave) {
  write_file(dir_.file("ds.json"), R"({"train_batch_size": 1, "optimizer": {"type": "AdamW"}})");
  write_file(dir_.file("more.json"), "{\n\"aio\": {\"queue_dept\": 3},\n\"optimizer\": {}}");
  const ProgramResult check =
      run_sluice({"config", "resolve", dir_.file("ds.json"), "--config", dir_.file("more.json")});
  EXPECT_EQ(check.exit_code, 2);
  EXPECT_THAT(check.err, HasSubstr("more.json:2:"));
  EXPECT_THAT(check.err, HasSubstr("did you mean \"queue_depth\"?"));
  EXPECT_THAT(check.err, HasSubstr("more.json:3:1: optimizer: a second configuration file"));
}

}  // namespace
}  // namespace sluice::test
