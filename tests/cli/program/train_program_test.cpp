// `sluice train` and `sluice generate` around the training library: a copy of the program with a
// library beside it that trains nothing (fake_train_library.cpp).

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <json/json.h>

#include <filesystem>
#include <map>
#include <sstream>

#include "cli/json_text.hpp"
#include "cli/run_program.hpp"
#include "sluice/base/threads.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TrainProgram : public ::testing::Test {
 protected:
  TrainProgram() {
    std::filesystem::create_directories(directory_.file("bin"));
    std::filesystem::create_directories(directory_.file("lib"));
    std::filesystem::copy_file(SLUICE_PROGRAM, directory_.file("bin/sluice"));
    write_file(directory_.file("model.json"), kModelJson);
    write_file(directory_.file("it's ds.json"), kConfigJson);
    write_file(directory_.file("text"), std::string(4096, 'x'));
  }
  void add_library() {
    std::filesystem::copy_file(SLUICE_FAKE_TRAIN_LIBRARY,
                               directory_.file("lib/libsluice_train.so"));
  }
  std::vector<std::string> train_line() const {
    return {directory_.file("bin/sluice"),
            "train",
            "--config",
            directory_.file("it's ds.json"),
            "--model",
            directory_.file("model.json"),
            "--data",
            directory_.file("text")};
  }
  // The line to resume, as it must be printed.
  std::string resume_line() const {
    return directory_.file("bin/sluice") + " train --config '" +
           directory_.file("it'\\''s ds.json") + "' --model " + directory_.file("model.json") +
           " --data " + directory_.file("text");
  }
  // Arguments of `sluice generate` with a model, weights and a prompt, and `more` behind them.
  std::vector<std::string> generate_line(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> line = {directory_.file("bin/sluice"),
                                     "generate",
                                     "--model",
                                     directory_.file("model.json"),
                                     "--weights",
                                     directory_.file("text"),
                                     "--prompt",
                                     "Once "};
    line.insert(line.end(), more.begin(), more.end());
    return line;
  }
  ProgramResult train(const std::string& scenario,
                      const std::vector<std::string>& more = {}) const {
    std::vector<std::string> line = train_line();
    line.insert(line.end(), more.begin(), more.end());
    return run_program(line, {{"SLUICE_FAKE_SCENARIO", scenario}, {"LC_ALL", "C.UTF-8"}});
  }
  TempDir directory_;
};

TEST_F(TrainProgram, FlagsReachTheTrainingLibrary) {
  add_library();
  write_file(directory_.file("it's ds.json"), R"({"train_micro_batch_size_per_gpu": "auto",
      "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
      "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}}})");
  const ProgramResult open = train("");
  EXPECT_EQ(open.exit_code, 2);
  EXPECT_THAT(open.err, HasSubstr("optimizer.params.lr (--learning-rate LR)"));
  const std::vector<std::string> flags = {
      "--steps", "12", "--learning-rate", "1e-3", "--per-device-train-batch-size", "2"};
  const ProgramResult filled = train("", flags);
  EXPECT_EQ(filled.exit_code, 0) << filled.err;
  std::vector<std::string> line = {"plan", "--config", directory_.file("it's ds.json"), "--model",
                                   directory_.file("model.json")};
  EXPECT_EQ(run_sluice(line).exit_code, 2);
  line.insert(line.end(), flags.begin(), flags.end());
  EXPECT_EQ(run_sluice(line).exit_code, 0);
}

TEST_F(TrainProgram, ALibraryThatBindsItsThreadToOneCoreLeavesTheRunAllOfThem) {
  add_library();
  const std::string cores = std::to_string(allowed_cores().value_or(0));
  if (cores == "1") GTEST_SKIP() << "needs two cores";
  const ProgramResult result = train("binds_to_one_core");
  EXPECT_THAT(result.out, HasSubstr("chosen: " + cores + " cores\n")) << result.err;
}

TEST_F(TrainProgram, ThreadsOfOpenMpSpinShortlyUnlessTheUserSaysHowTheyWait) {
  add_library();
  const std::map<std::string, std::string> lines_by_setting = {
      {"OTHER=1", "OMP_WAIT_POLICY=passive\nGOMP_SPINCOUNT=1000\n"},
      {"GOMP_SPINCOUNT=7", "OMP_WAIT_POLICY=passive\nGOMP_SPINCOUNT=7\n"},
      {"OMP_WAIT_POLICY=passive", "OMP_WAIT_POLICY=passive\nGOMP_SPINCOUNT=unset\n"},
      {"OMP_WAIT_POLICY=active", "OMP_WAIT_POLICY=active\nGOMP_SPINCOUNT=unset\n"},
  };
  for (const auto& [setting, lines] : lines_by_setting) {
    std::vector<std::string> line = {"/usr/bin/env",   "-u",   "OMP_WAIT_POLICY", "-u",
                                     "GOMP_SPINCOUNT", setting};
    for (const std::string& argument : train_line()) line.push_back(argument);
    const ProgramResult result =
        run_program(line, {{"SLUICE_FAKE_SCENARIO", "says_how_openmp_waits"}});
    EXPECT_THAT(result.err, HasSubstr(lines)) << setting;
  }
}

TEST_F(TrainProgram, APlanPredictsFromRatesThatAProbeLeft) {
  add_library();
  write_file(directory_.file("ds.json"),
             R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1,
                 "optimizer": {"type": "AdamW", "params": {"lr": 0.0004}},
                 "bf16": {"enabled": true}, "zero_optimization": {"stage": 3}})");
  std::vector<std::string> line = {directory_.file("bin/sluice"),
                                   "plan",
                                   "--config",
                                   directory_.file("ds.json"),
                                   "--model",
                                   directory_.file("model.json"),
                                   "--rates",
                                   directory_.file("rates.json")};
  const ProgramResult absent = run_program(line, {});
  EXPECT_EQ(absent.exit_code, 4);
  EXPECT_THAT(absent.err, HasSubstr("rates.json: open: No such file or directory"));
  write_file(directory_.file("rates.json"), "");
  const ProgramResult before = run_program(line, {{"LC_ALL", "C.UTF-8"}});
  EXPECT_EQ(before.exit_code, 0) << before.err;
  EXPECT_THAT(before.out, Not(HasSubstr("predicted")));
  line.emplace_back("--probe");
  const ProgramResult probed = run_program(line, {{"LC_ALL", "C.UTF-8"}});
  EXPECT_EQ(probed.exit_code, 0) << probed.err;
  EXPECT_THAT(probed.out, HasSubstr("predicted: "));
  EXPECT_THAT(probed.err, Not(HasSubstr("not kept")));
  std::vector<std::string> homeless = line;
  std::erase(homeless, "--rates");
  std::erase(homeless, directory_.file("rates.json"));
  const ProgramResult kept = run_program(homeless, {{"HOME", ""}, {"XDG_CACHE_HOME", ""}});
  EXPECT_EQ(kept.exit_code, 0) << kept.err;
  EXPECT_THAT(kept.err, HasSubstr("are not kept, because HOME is not set: give --rates FILE"));
  // Without measuring, and for another number of blocks too, the saved rates are used.
  line.back() = "--max";
  const ProgramResult largest = run_program(line, {{"LC_ALL", "C.UTF-8"}});
  EXPECT_EQ(largest.exit_code, 0) << largest.err;
  EXPECT_THAT(largest.out, AnyOf(HasSubstr("the largest model of this shape that fits has"),
                                 HasSubstr("more blocks fit than a model may have: 10000")));
  EXPECT_THAT(largest.out, HasSubstr("without NVMe: "));
  EXPECT_THAT(largest.out, HasSubstr("predicted: "));
  line.back() = "--json";
  const ProgramResult json = run_program(line, {{"LC_ALL", "C.UTF-8"}});
  EXPECT_THAT(json.out, HasSubstr("\"predicted\":{\"bound_by\":\"compute\""));
  // One of many ranks is predicted as the plan is; two share the cores of one.
  line.insert(line.end(), {"--ranks", "1,2"});
  const ProgramResult ranks = run_program(line, {{"LC_ALL", "C.UTF-8"}});
  EXPECT_THAT(ranks.err, HasSubstr("measured on this machine, by the plan of one rank"));
  EXPECT_THAT(ranks.err, HasSubstr("2 ranks on a host: in turns on the cores of one"));
  const double planned = parse_json(last_line(json.out))["predicted"]["step_seconds"].asDouble();
  const Json::Value plans = parse_json(last_line(ranks.out))["plans"];
  EXPECT_GT(planned, 0);
  EXPECT_NEAR(plans[0]["step_seconds"].asDouble(), planned, 1e-9);
  EXPECT_NEAR(plans[1]["seconds"]["compute"].asDouble(),
              2 * plans[0]["seconds"]["compute"].asDouble(), 1e-9);
  // Measured with the threads that each of two has, they take no turns. The fake's seconds are the
  // same for any number of threads.
  line.emplace_back("--probe");
  const ProgramResult probed_ranks = run_program(line, {{"LC_ALL", "C.UTF-8"}});
  EXPECT_THAT(probed_ranks.err, HasSubstr("2 ranks on a host: with "));
  const Json::Value apart = parse_json(last_line(probed_ranks.out))["plans"];
  const int turns = allowed_cores().value_or(1) > 1 ? 1 : 2;
  EXPECT_NEAR(apart[1]["seconds"]["compute"].asDouble(),
              turns * apart[0]["seconds"]["compute"].asDouble(), 1e-9);
}

TEST_F(TrainProgram, SaysWhatToDoWithoutTheLibrary) {
  const ProgramResult result = train("");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("this build has no LibTorch"));
  EXPECT_THAT(result.err, HasSubstr("scripts/setup.sh"));
  EXPECT_THAT(result.err, HasSubstr("an installation needs the component train too"));
}

// Built for MPI or not, the row says whether ranks can join.
TEST_F(TrainProgram, DoctorLooksForTheLibraryOfMpi) {
  const auto row = [&] {
    const ProgramResult result = run_program({directory_.file("bin/sluice"), "doctor", "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return parse_json(result.out)["libraries"]["MPI"];
  };
  const std::string library = directory_.file("lib/libsluice_mpi.so");
  const Json::Value missing = row();
  EXPECT_EQ(missing["state"].asString(), "off");
  if (missing["detail"].asString().starts_with("built without it")) return;
  EXPECT_THAT(missing["detail"].asString(),
              AllOf(HasSubstr("there is no " + library), HasSubstr("the target sluice_mpi")));
  write_file(library, "");
  const Json::Value there = row();
  EXPECT_EQ(there["state"].asString(), "on");
  EXPECT_THAT(there["detail"].asString(), HasSubstr(", through " + library));
}

TEST_F(TrainProgram, SaysSoWhenTheLibraryCannotBeLoaded) {
  write_file(directory_.file("lib/libsluice_train.so"), "this is not a library");
  const ProgramResult result = train("");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("cannot load " + directory_.file("lib/libsluice_train.so")));
}

// Built from other headers, its objects could have other sizes.
TEST_F(TrainProgram, RefusesTheLibraryOfAnotherBuild) {
  add_library();
  const ProgramResult result = train("another_build");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr(directory_.file("lib/libsluice_train.so") +
                                    " is of another build than this program"));
}

TEST_F(TrainProgram, ShowsPlanStepsCurveAndSummary) {
  add_library();
  const ProgramResult result = train("", {"--steps", "12", "--report", "somewhere"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("optimizer states"));
  EXPECT_THAT(result.out, HasSubstr("step 1/12  loss 5.0000"));
  EXPECT_THAT(result.out, HasSubstr("step 12/12  eval loss 1.2500"));
  EXPECT_THAT(result.out, HasSubstr("training loss"));
  EXPECT_THAT(result.out, HasSubstr("bound by compute"));
  EXPECT_THAT(result.out, HasSubstr("somewhere/report.json"));
  EXPECT_THAT(result.err, HasSubstr("warning: a warning of the library"));
  EXPECT_THAT(result.out, Not(HasSubstr("\r")))
      << "nothing is rewritten in place outside a terminal";
}

TEST_F(TrainProgram, KeepsStandardOutputForTheObjectWithJson) {
  add_library();
  const ProgramResult result = train("", {"--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1);
  Json::Value object;
  std::istringstream stream(result.out);
  std::string errors;
  ASSERT_TRUE(Json::parseFromStream(Json::CharReaderBuilder(), stream, &object, &errors)) << errors;
  EXPECT_EQ(object["bound_by"].asString(), "compute");
  EXPECT_THAT(result.err, HasSubstr("optimizer states"));
}

TEST_F(TrainProgram, EndsAfterTheStepOnInterruptAndPrintsTheLineToResume) {
  add_library();
  const ProgramResult result = train("interrupt");
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_THAT(result.out,
              HasSubstr("step 3 is committed; to go on:\n  " + resume_line() + " --resume\n"));
  EXPECT_THAT(result.err, HasSubstr("stopping after the step in progress"));
}

TEST_F(TrainProgram, EndsWith143WhenTerminated) {
  add_library();
  EXPECT_EQ(train("terminate").exit_code, 143);
}

TEST_F(TrainProgram, EndsAtOnceOnTheSecondSignalAndStillPrintsTheLine) {
  add_library();
  const ProgramResult result = train("interrupt_twice");
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_THAT(result.err, HasSubstr("  " + resume_line() + " --resume\n"));
}

TEST_F(TrainProgram, KeepsTheExitCodeWhenTheSecondSignalComesAsTheProcessEnds) {
  add_library();
  EXPECT_EQ(train("interrupt_then_at_exit").exit_code, 130);
}

TEST_F(TrainProgram, EndsBeforeTheFirstStepOnASignalDuringTheStart) {
  add_library();
  for (const char* moment : {"signal_while_loading", "signal_before_the_plan"}) {
    const ProgramResult result = train(moment);
    EXPECT_EQ(result.exit_code, 143) << moment << ": " << result.err;
    EXPECT_THAT(result.out, HasSubstr("stopped before the first step; to begin, or to go on:\n  " +
                                      resume_line() + " --resume\n"))
        << moment;
    EXPECT_THAT(result.out, Not(HasSubstr("step 1/"))) << moment;
    EXPECT_THAT(result.err, HasSubstr("sluice: stopping; the same signal again")) << moment;
  }
}

TEST_F(TrainProgram, ShowsTheChoicesThatWereMadeWhenFilesWereOpened) {
  add_library();
  EXPECT_THAT(train("").out, HasSubstr("chosen: I/O by a fake\n"));
}

TEST_F(TrainProgram, DoesNotRepeatTheResumeFlag) {
  add_library();
  const ProgramResult result = train("interrupt", {"--resume"});
  EXPECT_THAT(result.out, HasSubstr(resume_line() + " --resume\n"));
}

TEST_F(TrainProgram, SaysThatNothingWasCommitted) {
  add_library();
  const ProgramResult result = train("interrupt_uncommitted");
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_THAT(result.out, HasSubstr("nothing is committed"));
}

TEST_F(TrainProgram, MapsTheLibrarysErrorsToExitCodes) {
  add_library();
  EXPECT_EQ(train("io_error").exit_code, 4);
  EXPECT_EQ(train("out_of_memory").exit_code, 3);
  EXPECT_EQ(train("unknown_error").exit_code, 1);
}

TEST_F(TrainProgram, RefusesAMistakenConfigurationBeforeLoadingTheLibrary) {
  write_file(directory_.file("it's ds.json"), R"({"train_batch_size": 0})");
  EXPECT_EQ(train("").exit_code, 2);
}

TEST_F(TrainProgram, ShowsThePromptOnlyWhenTheWeightsAreGoodAndErrorsOnALineOfTheirOwn) {
  add_library();
  const std::vector<std::string> line = generate_line();
  ProgramResult result = run_program(line, {{"SLUICE_FAKE_SCENARIO", "bad_weights"}});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_EQ(result.out, "");
  result = run_program(line, {{"SLUICE_FAKE_SCENARIO", "fails_at_a_token"}});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_EQ(result.out, "Once a\n");
}

TEST_F(TrainProgram, RefusesAReportThatIsADirectoryBeforeItTrains) {
  add_library();
  std::filesystem::create_directories(directory_.file("report/report.json"));
  const ProgramResult result = train("", {"--report", directory_.file("report")});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err, "sluice: --report: " + directory_.file("report/report.json") +
                            ": this is a directory, expected a file\n");
}

TEST_F(TrainProgram, StreamsGeneratedBytesAndListsTokensAsJson) {
  add_library();
  const std::vector<std::string> line = generate_line({"--max-new-tokens", "5"});
  EXPECT_EQ(run_program(line).out, "Once abc\xC3(\n");
  std::vector<std::string> json_line = line;
  json_line.emplace_back("--json");
  const ProgramResult json = run_program(json_line);
  // The byte C3 alone is no character.
  EXPECT_EQ(json.out,
            "{\"prompt\":\"Once \",\"text\":\"abc\xEF\xBF\xBD(\",\"tokens\":[97,98,99,195,40]}\n");
}

TEST_F(TrainProgram, NamesAbsentWeights) {
  add_library();
  const ProgramResult result =
      run_program({directory_.file("bin/sluice"), "generate", "--model",
                   directory_.file("model.json"), "--weights", "absent", "--prompt", "x"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--weights: absent"));
}

}  // namespace
}  // namespace sluice::test
