// A run whose directories are a list: the same bits, resumable after kills, and what is wrong with
// the list is said.

#include <gtest/gtest.h>

#include "train_support.hpp"

namespace sluice::test {
namespace {

constexpr int kSteps = 30;

// Weights given: nothing is measured, and the shares differ.
TrainSetup weighted() {
  TrainSetup setup;
  setup.sluice_keys = R"("io": {"drive_weights": [1, 3]}, "drive_endurance": "1TB", )";
  return setup;
}

TEST(Striped, EqualsOneDirectoryBitForBitAlsoAfterKills) {
  TrainFolder folder;
  folder.set({});
  ASSERT_EQ(folder.train("single", kSteps).exit_code, 0);
  folder.set_striped(weighted());
  const auto arguments = folder.arguments("report", kSteps, {"--resume"});
  for (const int line : {3, 11, 20}) {
    EXPECT_TRUE(kill_after_line(arguments, folder.path("report") + "/steps.jsonl", line,
                                std::chrono::milliseconds(line)));
  }
  const ProgramResult last = folder.train("report", kSteps, {"--resume"});
  ASSERT_EQ(last.exit_code, 0) << last.err;
  EXPECT_EQ(column(folder, "report", "loss"), column(folder, "single", "loss"));
  EXPECT_EQ(column(folder, "report", "grad_norm"), column(folder, "single", "grad_norm"));
  // Three times as much lies on the second drive, up to a chunk.
  const auto first = std::filesystem::file_size(folder.swap() + "/states.0.swap");
  const auto second = std::filesystem::file_size(folder.path("swap2") + "/states.0.part2.swap");
  EXPECT_LE(second, 3 * (first + (1U << 20U)));
  EXPECT_GE(second + (3U << 20U), 3 * first);
  const std::string report = folder.report_text("report");
  std::uint64_t on_drives = 0;
  for (const std::string& name : {std::string("swap"), std::string("swap2")}) {
    for (const std::string& path : folder.files(name)) {
      if (path.ends_with(".swap")) on_drives += std::filesystem::file_size(path);
    }
  }
  EXPECT_GE(report_of(folder)["peak_bytes"]["nvme"].asUInt64(), on_drives);
  for (const char* part :
       {"\"drives\":[{", "swap2", "\"life_written_bytes\":", "\"rated_bytes\":2000000000000"})
    EXPECT_NE(report.find(part), std::string::npos) << part << " in " << report;

  const ProgramResult verified = run_sluice({"nvme", "verify", folder.swap()});
  EXPECT_EQ(verified.exit_code, 0) << verified.err;
  const ProgramResult exported =
      run_sluice({"export", folder.swap(), "--out", folder.path("weights.safetensors")});
  EXPECT_EQ(exported.exit_code, 0) << exported.err;
  expect_refused(run_sluice({"nvme", "clean", folder.path("swap2"), "--committed"}), 4,
                 {"swap2", "part 2 of 2 of the run in " + folder.swap()});
  expect_refused(run_sluice({"nvme", "verify", folder.path("swap2")}), 4,
                 {"part 2 of 2 of the run in " + folder.swap()});
  expect_refused(run_sluice({"export", folder.swap(), "--out", folder.path("swap2") + "/w"}), 2,
                 {"lies in the directory of the run itself"});
  // A copy names the parts of the original.
  for (const char* name : {"swap", "swap2"})
    std::filesystem::copy(folder.path(name), folder.path(std::string("copy_of_") + name));
  const std::string copy = folder.path("copy_of_swap");
  for (const std::vector<std::string>& reading : std::vector<std::vector<std::string>>{
           {"nvme", "verify", copy},
           {"export", copy, "--out", folder.path("of_copy.safetensors")},
           {"generate", "--model", folder.model(), "--weights", copy, "--prompt", "a"}})
    expect_refused(run_sluice(reading), 4, {copy, "is a copy of " + folder.swap()});
  // Not by half the list, nor the other way round.
  write_file(folder.config(), config_json(weighted(), "[\"" + folder.path("swap2") + "\", \"" +
                                                          folder.swap() + "\"]"));
  expect_refused(folder.train("swapped", kSteps + 1, {"--resume"}), 4,
                 {"swap2", "part 2 of 2 of the run in " + folder.swap()});
  folder.set({});
  expect_refused(folder.train("half", kSteps + 1, {"--resume"}), 4, {"striped over"});
}

TEST(Striped, MeasuresTheDrivesWhenARunBegins) {
  TrainFolder folder;
  folder.set_striped({});
  const ProgramResult result = folder.train("report", 2);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(folder.report_text("report").find("at the same time they moved"), std::string::npos);
  EXPECT_EQ(folder.train("report", 3, {"--resume"}).exit_code, 0);
}

TEST(Striped, ScratchAloneMayBeStriped) {
  TrainFolder folder;
  folder.set({});
  ASSERT_EQ(folder.train("single", 3).exit_code, 0);
  TrainSetup setup = weighted();
  setup.optimizer_device = "cpu";
  setup.host_bytes = "200MiB";
  folder.set_striped(setup);
  const ProgramResult result = folder.train("report", 3);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(column(folder, "report", "loss"), column(folder, "single", "loss"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path("swap2")) ||
              folder.files("swap2").size() == 1U);  // the lock
}

TEST(Striped, AnAbsentDirectoryIsNamed) {
  TrainFolder folder;
  folder.set_striped(weighted());
  std::filesystem::remove_all(folder.path("swap2"));
  expect_refused(folder.train("report", 2), 4, {"swap2", "must name an existing directory"});
  // Its drive is not mounted: a directory that is made below the mount point would be another one.
  expect_refused(folder.train("report", 2, {"--resume"}), 4,
                 {"swap2", "mount its drive; for a run that has not begun, create it"});
}

TEST(Striped, ListsThatAreWrongAreSaidSo) {
  TrainFolder folder;
  for (const char* list : {"[]", "[1]", R"(["a", ""])", R"(["a", null])"}) {
    write_file(folder.config(), config_json({}, list));
    expect_refused(folder.train("report", 2), 2, {"nvme_path", "list of directories"});
  }
  TrainSetup setup;
  setup.sluice_keys = R"("io": {"drive_weights": [1, 2, 3]}, )";
  folder.set_striped(setup);
  expect_refused(folder.train("report", 2), 2, {"3 weights for 2 directories"});
  for (const char* weights : {"[]", "[0, 1]", "[1, 65]", "[1, \"x\"]", "[1.5, 1]"}) {
    setup.sluice_keys = std::string("\"io\": {\"drive_weights\": ") + weights + "}, ";
    folder.set_striped(setup);
    expect_refused(folder.train("report", 2), 2, {"drive_weights", "integers in [1, 64]"});
  }
  setup.sluice_keys = R"("drive_endurance": "many", )";
  folder.set_striped(setup);
  expect_refused(folder.train("report", 2), 2, {"drive_endurance", "600TB"});
  TrainSetup same;
  write_file(folder.config(),
             config_json(same, "[\"" + folder.swap() + "\", \"" + folder.swap() + "/.\"]"));
  expect_refused(folder.train("report", 2), 2, {"named twice"});
}

}  // namespace
}  // namespace sluice::test
