#include "command/parse_arguments.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/base/error.hpp"

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;

std::string error_of(const std::vector<std::string>& arguments) {
  try {
    parse_arguments(arguments);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

std::vector<std::string> train_with(const std::vector<std::string>& more) {
  std::vector<std::string> line = {"train", "--config", "c", "--model", "m", "--data", "d"};
  line.insert(line.end(), more.begin(), more.end());
  return line;
}

train::TrainRequest train_request(const std::vector<std::string>& more) {
  return std::get<TrainArguments>(parse_arguments(train_with(more)).command).request;
}

TEST(ParseArguments, FillsEveryFieldOfATrainRequest) {
  const train::TrainRequest request =
      train_request({"--init", "w", "--steps", "7", "--seed", "18446744073709551615", "--resume",
                     "--placement", "resident", "--eval-fraction", "0.05", "--eval-every", "3",
                     "--eval-windows", "0", "--report", "r"});
  EXPECT_EQ(request.config_path, "c");
  EXPECT_EQ(request.model_path, "m");
  EXPECT_EQ(request.data_paths, std::vector<std::string>{"d"});
  EXPECT_EQ(request.init_path, "w");
  EXPECT_EQ(request.steps, 7);
  EXPECT_EQ(request.seed, 18446744073709551615ULL);
  EXPECT_TRUE(request.resume);
  EXPECT_EQ(request.placement, plan::Placement::resident);
  EXPECT_EQ(request.evaluation.fraction, 0.05);
  EXPECT_EQ(request.evaluation.every, 3);
  EXPECT_EQ(request.evaluation.windows, 0U);
  EXPECT_EQ(request.report_dir, "r");
}

TEST(ParseArguments, LeavesTheRestAtItsDefaults) {
  const train::TrainRequest request = train_request({});
  EXPECT_FALSE(request.steps.has_value());
  EXPECT_FALSE(request.resume);
  EXPECT_EQ(request.placement, plan::Placement::configured);
  EXPECT_EQ(request.evaluation.windows, 64U);
}

TEST(ParseArguments, TakesTheSameLineForPlanWithoutData) {
  const Invocation invocation =
      parse_arguments({"plan", "--config", "c", "--model", "m", "--steps", "9"});
  EXPECT_EQ(std::get<PlanArguments>(invocation.command).request.steps, 9);
}

TEST(ParseArguments, FillsAGenerateRequest) {
  const auto request =
      std::get<GenerateArguments>(
          parse_arguments({"generate", "--model", "m", "--weights", "w", "--prompt", "a b",
                           "--max-new-tokens", "5", "--temperature", "0", "--top-k", "40", "--seed",
                           "3", "--dtype", "bf16"})
              .command)
          .request;
  EXPECT_EQ(request.prompt, "a b");
  EXPECT_EQ(request.max_new_tokens, 5);
  EXPECT_EQ(request.temperature, 0);
  EXPECT_EQ(request.top_k, 40);
  EXPECT_EQ(request.seed, 3U);
  EXPECT_EQ(request.dtype, DType::bf16);
}

TEST(ParseArguments, FillsExportAndJson) {
  const Invocation invocation =
      parse_arguments({"export", "run", "--out", "o", "--dtype", "bf16", "--json"});
  EXPECT_EQ(std::get<ExportArguments>(invocation.command).run_directory, "run");
  EXPECT_EQ(std::get<ExportArguments>(invocation.command).dtype, DType::bf16);
  EXPECT_TRUE(invocation.json);
}

TEST(ParseArguments, FindsNestedCommands) {
  EXPECT_EQ(
      std::get<ConfigCheckArguments>(parse_arguments({"config", "check", "f", "g"}).command).paths,
      (std::vector<std::string>{"f", "g"}));
  EXPECT_TRUE(
      std::holds_alternative<ConfigKeysArguments>(parse_arguments({"config", "keys"}).command));
}

TEST(ParseArguments, FillsTheArgumentsOfTheNvmeCommands) {
  const Invocation verify = parse_arguments({"nvme", "verify", "dir", "--json"});
  EXPECT_EQ(std::get<NvmeVerifyArguments>(verify.command).directory, "dir");
  EXPECT_TRUE(verify.json);
  const auto clean =
      std::get<NvmeCleanArguments>(parse_arguments({"nvme", "clean", "dir"}).command);
  EXPECT_EQ(clean.directory, "dir");
  EXPECT_FALSE(clean.committed);
  EXPECT_FALSE(clean.dry_run);
  const auto all = std::get<NvmeCleanArguments>(
      parse_arguments({"nvme", "clean", "--committed", "--dry-run", "dir"}).command);
  EXPECT_TRUE(all.committed);
  EXPECT_TRUE(all.dry_run);
}

TEST(ParseArguments, TakesTheNamesOfDeepSpeedsIoBench) {
  const auto named = std::get<NvmeBenchArguments>(
      parse_arguments({"nvme", "bench", "d", "--read", "--io_size", "400M", "--block_size", "1M",
                       "--queue_depth", "64", "--io_parallel", "2"})
          .command);
  EXPECT_EQ(named.pattern, nvme::LoadPattern::read);
  EXPECT_EQ(named.size_bytes, 400U << 20U);
  EXPECT_EQ(named.block_bytes, 1U << 20U);
  EXPECT_EQ(named.depth, 64U);
  EXPECT_EQ(named.io_threads, 2U);
  EXPECT_THAT(error_of({"nvme", "bench", "d", "--block_size", "1000"}),
              HasSubstr("--block_size: expected a multiple of 4096"));
  EXPECT_THAT(error_of({"nvme", "bench", "d", "--io_size", "4X"}), HasSubstr("--io_size: "));
}

TEST(ParseArguments, FillsTheArgumentsOfABench) {
  const auto plain = std::get<NvmeBenchArguments>(parse_arguments({"nvme", "bench", "d"}).command);
  EXPECT_EQ(plain.paths, std::vector<std::string>{"d"});
  EXPECT_EQ(plain.block_bytes, 256U << 10U);
  EXPECT_EQ(plain.depth, 32U);
  EXPECT_FALSE(plain.reads_per_write.has_value());
  EXPECT_FALSE(plain.size_bytes.has_value());
  const auto all =
      std::get<NvmeBenchArguments>(parse_arguments({"nvme",        "bench",     "a",
                                                    "b",           "--op",      "swap",
                                                    "--size",      "2GiB",      "--block",
                                                    "64KiB",       "--depth",   "7",
                                                    "--backend",   "threads",   "--io-threads",
                                                    "3",           "--seconds", "1.5",
                                                    "--overwrite", "--fio",     "--html",
                                                    "p",           "--clean",   "--reads-per-write",
                                                    "16"})
                                       .command);
  EXPECT_EQ(all.paths, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(all.pattern, nvme::LoadPattern::swap);
  EXPECT_EQ(all.size_bytes, std::uint64_t{2} << 30U);
  EXPECT_EQ(all.block_bytes, 65536U);
  EXPECT_EQ(all.depth, 7U);
  EXPECT_EQ(all.reads_per_write, 16U);
  EXPECT_EQ(all.backend, nvme::BackendKind::threads);
  EXPECT_EQ(all.io_threads, 3U);
  EXPECT_EQ(all.seconds, 1.5);
  EXPECT_TRUE(all.overwrite && all.fio && all.clean);
  EXPECT_EQ(all.html_path, "p");
}

TEST(ParseArguments, FillsTheArgumentsOfATune) {
  const auto tune = std::get<NvmeTuneArguments>(
      parse_arguments({"nvme", "tune", "a", "b", "--out", "o", "--html", "p", "--seconds", "9",
                       "--size", "1GiB", "--backend", "libaio", "--overwrite"})
          .command);
  EXPECT_EQ(tune.paths, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(tune.out_path, "o");
  EXPECT_EQ(tune.html_path, "p");
  EXPECT_EQ(tune.seconds, 9);
  EXPECT_EQ(tune.size_bytes, std::uint64_t{1} << 30U);
  EXPECT_EQ(tune.backend, nvme::BackendKind::libaio);
  EXPECT_TRUE(tune.overwrite);
  EXPECT_FALSE(tune.clean);
}

TEST(ParseArguments, AConfigurationGivenAgainGoesOverTheFirst) {
  const auto train = std::get<TrainArguments>(
      parse_arguments({"train", "--config", "c", "--model", "m", "--data", "d", "--config", "t"})
          .command);
  EXPECT_EQ(train.request.config_path, "c");
  EXPECT_EQ(train.request.tuned_paths, std::vector<std::string>{"t"});
}

TEST(ParseArguments, ShowsTheHelpOfTheCommandThatWasNamed) {
  EXPECT_THAT(std::get<ShowText>(parse_arguments({"config", "keys", "-h"}).command).text,
              HasSubstr("usage: sluice config keys"));
  EXPECT_THAT(std::get<ShowText>(parse_arguments({}).command).text,
              HasSubstr("usage: sluice COMMAND"));
}

TEST(UsageError, NamesTheNearestFlagOrCommand) {
  EXPECT_THAT(error_of(train_with({"--evalevery", "3"})),
              HasSubstr("did you mean \"--eval-every\"?"));
  EXPECT_THAT(error_of({"tarin"}), HasSubstr("unknown command \"tarin\"; did you mean \"train\"?"));
  EXPECT_THAT(error_of({"config", "chekc"}), HasSubstr("did you mean \"check\"?"));
  EXPECT_THAT(error_of({"nvme", "clean", "d", "--comitted"}),
              HasSubstr("nvme clean: unknown flag \"--comitted\"; did you mean \"--committed\"?"));
  EXPECT_THAT(error_of({"zzzzzz"}), ::testing::Not(HasSubstr("did you mean")));
  EXPECT_THAT(error_of({"data", "tokenize"}),
              HasSubstr("\"data\" is a command of the Python package"));
}

TEST(UsageError, TellsTheNameHereForANameOfFio) {
  EXPECT_THAT(error_of({"nvme", "bench", "d", "--bs=4k"}),
              HasSubstr("bench: --bs is fio's name: here it is --block"));
  EXPECT_THAT(error_of({"nvme", "bench", "d", "--bs"}),
              HasSubstr("bench: --bs is fio's name: here it is --block"));
  EXPECT_THAT(error_of({"nvme", "bench", "--rw", "--clean"}),
              HasSubstr("bench: --rw is fio's name: here it is --op and --access"));
}

TEST(UsageError, ListsEverythingThatIsMissing) {
  EXPECT_THAT(error_of({"train"}),
              HasSubstr("train: missing --config FILE, --model FILE, --data FILE"));
  EXPECT_THAT(error_of({"export"}), HasSubstr("missing DIR, --out FILE"));
  EXPECT_THAT(error_of({"config"}), HasSubstr("a command is missing"));
  EXPECT_THAT(error_of({"nvme"}), HasSubstr("nvme: a command is missing"));
  EXPECT_THAT(error_of({"nvme", "verify"}), HasSubstr("nvme verify: missing DIR"));
  EXPECT_THAT(error_of({"nvme", "clean", ""}), HasSubstr("DIR: the value is empty"));
}

TEST(UsageError, SaysWhatIsWrongWithAValue) {
  EXPECT_THAT(error_of(train_with({"--steps", "many"})),
              HasSubstr("train: --steps: expected a whole number of at least 0, found \"many\""));
  EXPECT_THAT(error_of(train_with({"--steps", "-1"})), HasSubstr("at least 0, found \"-1\""));
  EXPECT_THAT(error_of(train_with({"--steps", "99999999999999999999"})), HasSubstr("--steps"));
  EXPECT_THAT(error_of(train_with({"--steps"})), HasSubstr("--steps needs a value"));
  EXPECT_THAT(error_of(train_with({"--steps", "1", "--steps", "2"})),
              HasSubstr("--steps was given 2 times"));
  EXPECT_THAT(error_of(train_with({"--report=", "--resume"})),
              HasSubstr("train: --report: the value is empty"));
  EXPECT_THAT(error_of(train_with({"--report=", "--seed", "1"})),
              HasSubstr("train: --report: the value is empty"));
  EXPECT_THAT(error_of(train_with({"--report", ""})), HasSubstr("--report: the value is empty"));
  EXPECT_THAT(error_of(train_with({"--report", "--resume"})),
              HasSubstr("--report needs a value, and \"--resume\" is a flag; if it is the value, "
                        "write --report=--resume"));
  EXPECT_EQ(error_of(train_with({"--report=--resume"})), "no error");
  EXPECT_EQ(error_of(train_with({"--resume", "--json", "--report", "r"})), "no error");
  EXPECT_EQ(error_of(train_with({"--set", "optimizer.params.lr=1", "--set=a.b="})), "no error");
  EXPECT_THAT(error_of(train_with({"--lr", "1e-500"})), HasSubstr("too small or too large"));
  EXPECT_THAT(error_of({"launch", "--log-dir=", "--num-gpus", "2", "true"}),
              HasSubstr("launch: --log-dir: the value is empty"));
  EXPECT_EQ(error_of({"launch", "--num-gpus", "2", "true", "--x=", "--num-gpus"}), "no error");
  EXPECT_THAT(error_of(train_with({"--seed", "-1"})),
              HasSubstr("--seed: expected a whole number from 0"));
  EXPECT_THAT(error_of(train_with({"--placement", "cpu"})), HasSubstr("configured or resident"));
  EXPECT_THAT(error_of(train_with({"--eval-fraction", "1"})), HasSubstr("between 0 and 1"));
  EXPECT_THAT(error_of(train_with({"--eval-fraction", "nan"})), HasSubstr("expected a number"));
  EXPECT_THAT(error_of({"export", "r", "--out", "o", "--dtype", "int8"}),
              HasSubstr("fp32, bf16 or fp16"));
}

TEST(UsageError, RefusesWhatContradictsItself) {
  EXPECT_THAT(error_of(train_with({"--eval-fraction", "0.1", "--eval-data", "e"})),
              HasSubstr("exclude each other"));
  EXPECT_THAT(error_of(train_with({"--eval-every", "5"})),
              HasSubstr("needs something to evaluate on"));
  EXPECT_THAT(error_of({"plan", "--config", "c", "--model", "m", "--eval-fraction", "0.1"}),
              HasSubstr("needs --data"));
  EXPECT_THAT(error_of({"plan", "--ranks", "8", "--parameters", "1B", "--epochs", "2"}),
              HasSubstr("--epochs is for the plan of one run, without --ranks"));
  for (const char* twin : {"--io_size=1M", "--block_size=4K", "--queue_depth=2", "--read"}) {
    EXPECT_THAT(error_of({"nvme", "bench", "d", "--size", "2MiB", "--block", "8KiB", "--depth", "4",
                          "--op", "write", twin}),
                HasSubstr("two names of one option, or two options that exclude each other"))
        << twin;
  }
}

TEST(UsageError, ASwitchTakesNoValue) {
  for (const char* value : {"--bf16=false", "--resume=0", "--json=maybe"}) {
    const std::string flag(value, std::string_view(value).find('='));
    EXPECT_THAT(error_of(train_with({value})), HasSubstr("train: " + flag + " takes no value"));
  }
  EXPECT_EQ(error_of(train_with({"--bf16=true"})), "no error");
}

TEST(UsageError, ASeparatorMayStandBeforeALaunchedProgram) {
  EXPECT_EQ(error_of({"launch", "--num-gpus", "2", "--", "ls", "-l"}), "no error");
  EXPECT_EQ(error_of({"launch", "--bind-cores-to-rank", "--", "echo", "--", "-n"}), "no error");
  EXPECT_THAT(error_of({"launch", "--"}), HasSubstr("missing PROGRAM"));
}

}  // namespace
}  // namespace sluice::cli
