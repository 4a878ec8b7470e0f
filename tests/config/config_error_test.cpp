#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "config_testing.hpp"
#include "temp_dir.hpp"

namespace sluice::config::test {
namespace {

using testing::HasSubstr;

constexpr const char* kTenMistakes = R"({
  // ten mistakes
  "train_batch_size": 33,
  "train_micro_batch_size_per_gpu": 2,
  "gradient_acumulation_steps": 4,
  "gradient_clipping": "one",
  "optimizer": {
    "type": "RMSprop", "params": {"lr": -1}
  },
  "fp16": {"fp16_master_weights_and_grads": true, "enabled": true},
  "zero_optimization": {
    "stage": 4, # none such
    "offload_optimizer": {"device": "nvme"}
  },
  "sluice": {
    "host_bytes": "64MiX",
    "durability": "strong"
  }
}
)";

// One long line: columns of 50,000 keys in it, and the nearest names to them, must not add up.
TEST(ConfigError, NamesTheFirstHundredOfFiftyThousandMistakes) {
  for (const bool repeated : {false, true}) {
    std::string text = "{\"sluice\": {";
    for (int i = 0; i < 50'000; ++i) {
      text +=
          (i == 0 ? "\"" : ", \"") + (repeated ? "zero" : "no_such_" + std::to_string(i)) + "\": 1";
    }
    text += "}}";
    const auto problems = problems_of(text);
    EXPECT_EQ(problems.size(), 100U);
    EXPECT_EQ(problems.back().line, 1);
    EXPECT_GT(problems.back().column, 100);
    EXPECT_THAT(ConfigError("ds.json", problems).what(),
                HasSubstr("the first 100 problems in ds.json"));
  }
}

// Unknown keys at the top level are notes, which end too.
TEST(ConfigError, AHundredIgnoredKeysAreEnough) {
  const auto file_with = [](int count) {
    std::string text = "{\"train_batch_size\": 8";
    for (int i = 0; i < count; ++i)
      text += ", \"" + std::string(1, static_cast<char>('a' + i % 26)) + "_qqqq_" +
              std::to_string(i) + "\": 1";
    return text + "}";
  };
  EXPECT_EQ(shown(problems_of(file_with(100))), "");
  const auto problems = problems_of(file_with(150));
  ASSERT_EQ(problems.size(), 50U);
  EXPECT_THAT(problems[0].message, HasSubstr("unknown key, after 100 others"));
}

TEST(ConfigError, ReportsTenMistakesInOneAnswerWithTheirPositions) {
  const auto problems = problems_of(std::string(kTenMistakes));
  struct Expected {
    int line, column;
    const char* key;
    const char* words;
  };
  const Expected expected[] = {
      {3, 3, "train_batch_size", "33 is not 2 x 16 x 1"},
      {5, 3, "gradient_acumulation_steps", "did you mean \"gradient_accumulation_steps\"?"},
      {6, 3, "gradient_clipping", "expected number in [0, 1e30], found \"one\" (string)"},
      {8, 5, "optimizer.type", "not supported yet"},
      {8, 35, "optimizer.params.lr", "expected number in [0, 1e10], found -1 (number)"},
      {10, 12, "fp16.fp16_master_weights_and_grads",
       "not supported yet; only false is accepted, found true (bool)"},
      {12, 5, "zero_optimization.stage", "expected integer in [0, 3], found 4 (number)"},
      {13, 5, "zero_optimization.offload_optimizer.nvme_path", "required when the device is nvme"},
      {16, 5, "sluice.host_bytes", "did you mean"},
      {17, 5, "sluice.durability", "expected one of process, power, none"},
  };
  ASSERT_EQ(problems.size(), std::size(expected)) << shown(problems);
  for (std::size_t i = 0; i < problems.size(); ++i) {
    EXPECT_EQ(problems[i].line, expected[i].line) << shown(problems);
    EXPECT_EQ(problems[i].column, expected[i].column) << shown(problems);
    EXPECT_EQ(problems[i].key_path, expected[i].key);
    EXPECT_THAT(problems[i].message, HasSubstr(expected[i].words));
  }
}

TEST(ConfigError, TextIsOneLineForEachProblemAndTheirNumber) {
  const ConfigError error("ds.json", {{4, 2, "b", "second"}, {1, 9, "", "first"}});
  EXPECT_STREQ(error.what(), "ds.json:1:9: first\nds.json:4:2: b: second\n2 problems in ds.json");
  EXPECT_EQ(error.problems()[0].message, "first");
  const InvalidArgument& base = error;  // programs map the base class to an exit code
  EXPECT_THAT(base.what(), HasSubstr("2 problems"));
}

TEST(ConfigError, SyntaxErrorsHaveLineAndColumn) {
  struct Case {
    const char* text;
    int line, column;
    const char* words;
  };
  const Case cases[] = {
      {"", 1, 1, "empty"},
      {" \n// nothing\n", 1, 1, "empty"},
      {"[1]", 1, 1, "expected a JSON object"},
      {"\n  7", 2, 3, "found a number"},
      {"{\"a\": 1\n \"b\": 2 \"c\": 3}", 2, 9, "Missing ','"},
      {"{\"a\" 1}", 1, 6, "Missing ':'"},
      {"{\"a\": 1}}", 1, 9, "something follows the end of the object"},
      {"{\"a\": 1", 1, 8, "Missing ','"},
      {"{\"a\": tru}", 1, 7, "a value is expected"},
      {"{\"a\": NaN}", 1, 7, "a value is expected"},
      {"{\"a\": -}", 1, 7, "a value is expected"},
      {"{\"a\": 01}", 1, 7, "a number has no zero in front"},
      {"{\"a\": 1e999}", 1, 7, "too large"},
      {"{\"a\": -0.1e-500}", 1, 7, "too small"},
      {"{'a': 1}", 1, 2, "key in double quotes"},
      {"{a 1}", 1, 2, "key in double quotes"},
      {"{\"a\": \"x\n\"}", 1, 9, "is a quote missing"},
      {"{\"a\": \"x", 1, 7, "does not end"},
      {"{\"a\": 1 /* b }", 1, 9, "comment"},
      {"{\"\xC3\xA9\": 1, \"b\": \"\xFF\"}", 1, 16, "UTF-8"},
      {"{\"a\": \"\\ud800\"}", 1, 7, "surrogate"},
  };
  for (const Case& c : cases) {
    const auto problems = problems_of(std::string(c.text));
    ASSERT_EQ(problems.size(), 1U) << c.text << "\n" << shown(problems);
    EXPECT_EQ(problems[0].line, c.line) << c.text << "\n" << shown(problems);
    EXPECT_EQ(problems[0].column, c.column) << c.text << "\n" << shown(problems);
    EXPECT_THAT(problems[0].message, HasSubstr(c.words)) << c.text;
  }
}

TEST(ConfigError, ColumnsCountCharactersAndLinesCountAnyLineEnd) {
  const auto problems =
      problems_of("{\r\n\"optimizer\": {\"type\": \"\xC3\xA9\"}, \"aio\": {\"x\": 1,\r\"y\": 2}}");
  ASSERT_EQ(problems.size(), 4U) << shown(problems);
  EXPECT_EQ(shown({problems[2]}), "2:37: aio.x: unknown key\n");
  EXPECT_EQ(shown({problems[3]}), "3:1: aio.y: unknown key\n");
}

TEST(ConfigFile, AcceptsCommentsTrailingCommasAndAByteOrderMark) {
  const TrainConfig config = parse_train_config(
      "\xEF\xBB\xBF// a\n{ # b\n\"train_batch_size\": /* c\n */ 8,\n"
      "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"betas\": [0.5, 0.25,],},},}// end",
      "ds.json");
  EXPECT_EQ(config.train_batch_size, 8);
  EXPECT_EQ(config.optimizer.beta2, 0.25);
}

// Other programs read it with their own readers of JSON.
TEST(ConfigFile, IsGivenBackAsStrictJson) {
  const sluice::test::TempDir dir;
  const auto strict = [&](const std::string& text) {
    std::ofstream(dir.file("ds.json")) << text;
    return strict_json(dir.file("ds.json"));
  };
  EXPECT_EQ(strict("\xEF\xBB\xBF{a: [1, 2.50,], # b\n\"c\": {\"d\": \"x,}\",}\n e: null,\n}"),
            "   {\"a\": [1, 2.50 ],    \n\"c\": {\"d\": \"x,}\" }\n ,\"e\": null \n}");
  EXPECT_EQ(strict_json("eyJ0cmFpbl9iYXRjaF9zaXplIjogOH0="), "{\"train_batch_size\": 8}");
  for (const char* broken : {"{\"a\": [,]}", "{\"a\": 1,,}", "{,}", "[1]", "{\"a\": 1, \"a\": 2}"})
    EXPECT_THROW(strict(broken), ConfigError) << broken;
  EXPECT_THROW(strict_json(dir.file("absent.json")), InvalidArgument);
}

TEST(ConfigFile, CommentSignsInsideStringsAreText) {
  const TrainConfig config = parse(
      minimal().set("sluice.checkpoint_dir", "\"/a//b#c/*d\"").set("sluice.checkpoint_every", "1"));
  EXPECT_EQ(config.sluice.checkpoints.directory, "/a//b#c/*d");
}

TEST(ConfigFile, RefusesAKeyGivenTwiceAtItsSecondPlaceAndChecksTheRest) {
  const auto problems = problems_of(
      "{\"train_batch_size\": 8,\n \"optimizer\": {\"type\": \"AdamW\"},\n"
      " \"train_batch_size\": 4,\n \"steps_per_prin\": 1}");
  ASSERT_EQ(problems.size(), 2U) << shown(problems);
  EXPECT_THAT(shown({problems[0]}), HasSubstr("3:2: train_batch_size: this key is given twice"));
  EXPECT_THAT(shown({problems[1]}), HasSubstr("4:2: steps_per_prin: unknown key"));
}

TEST(ConfigFile, RefusesAKeyThatIsGivenTwiceThroughAnEscape) {
  const auto problems = problems_of("{\"seed\": 8,\n \"\\u0073eed\": 4}");
  ASSERT_EQ(problems.size(), 1U) << shown(problems);
  EXPECT_THAT(shown(problems), HasSubstr("2:2: : not JSON: Duplicate key: 'seed'"));
}

TEST(ConfigFile, RefusesAKeyThatIsGivenUnderBothItsNames) {
  const auto problems =
      problems_of(minimal().set("bf16.enabled", "true").set("bfloat16.enabled", "true"));
  ASSERT_EQ(problems.size(), 1U) << shown(problems);
  EXPECT_THAT(shown(problems), HasSubstr("bfloat16: the same key as bf16"));
}

TEST(ConfigFile, SurvivesDeepNestingLongKeysAndLargeFiles) {
  const auto deep = problems_of("{\"a\": " + std::string(100000, '['));
  EXPECT_THAT(shown(deep), HasSubstr("nested deeper than 64 levels"));
  const auto at_limit =
      problems_of("{\"aio\": {\"a\": " + std::string(62, '[') + std::string(62, ']') + "}}");
  EXPECT_THAT(shown(at_limit), HasSubstr("1:10: aio.a: unknown key"));
  const auto long_key = problems_of("{\"aio\": {\"" + std::string(500000, 'k') + "\": 1}}");
  EXPECT_THAT(shown(long_key), HasSubstr("kkk...: unknown key"));
  const auto large = problems_of(std::string((1 << 20) + 1, ' '));
  EXPECT_THAT(shown(large), HasSubstr("larger than 1.00 MiB"));
}

TEST(ConfigFile, AKeyWithDotsDoesNotReachIntoASection) {
  const auto problems = problems_of(minimal().text().insert(1, "\"zero_optimization.stage\": 3,"));
  ASSERT_EQ(problems.size(), 1U) << shown(problems);
  EXPECT_THAT(shown(problems), HasSubstr("1:2: zero_optimization.stage: unknown key"));
}

TEST(ConfigFile, UnknownKeysNameTheNearestOfTheirLevelOrTheSectionTheyBelongIn) {
  const auto message = [](const std::string& path) {
    const auto problems = problems_of(minimal().set(path, "1"));
    return problems.empty() ? "" : problems[0].message;
  };
  EXPECT_THAT(message("zero_optimisation"), HasSubstr("did you mean \"zero_optimization\"?"));
  EXPECT_THAT(message("sluice.hostbytes"), HasSubstr("did you mean \"host_bytes\"?"));
  EXPECT_THAT(message("zero_optimization.stage3_prefetch_bucketsize"),
              HasSubstr("did you mean \"stage3_prefetch_bucket_size\"?"));
  EXPECT_THAT(message("durability"), HasSubstr("it belongs in \"sluice\""));
  EXPECT_THAT(message("sluice.gradient_clipping"), HasSubstr("it belongs at the top level"));
  EXPECT_EQ(message("aio.qqq"), "unknown key");
  // Words of refused keys elsewhere are no sign of them.
  EXPECT_EQ(message("version"), "");
  EXPECT_EQ(message("dtype"), "");
}

TEST(ConfigFile, AnUnreadableFileIsNamedWithTheReason) {
  const sluice::test::TempDir dir;
  const auto message = [](const std::string& path) -> std::string {
    try {
      load_train_config(path);
    } catch (const ConfigError& error) {
      return std::string("ConfigError: ") + error.what();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message(dir.file("absent.json")),
            "cannot read " + dir.file("absent.json") + ": No such file or directory");
  EXPECT_EQ(message(dir.path()), "cannot read " + dir.path() + ": Is a directory");
  EXPECT_THAT(message("/dev/zero"), HasSubstr("larger than 1.00 MiB"));
  std::ofstream(dir.file("bad.json")) << "{\n\"steps_per_prin\": 1}";
  EXPECT_THAT(message(dir.file("bad.json")),
              HasSubstr(dir.file("bad.json") + ":2:1: steps_per_prin: unknown key"));
}

TEST(ConfigFile, IsReadFromDisk) {
  const sluice::test::TempDir dir;
  std::ofstream(dir.file("ds.json")) << minimal().text();
  const TrainConfig config = load_train_config(dir.file("ds.json"), {.world_size = 2});
  EXPECT_EQ(config.path, dir.file("ds.json"));
  EXPECT_EQ(config.micro_batch_size, 4);
}

}  // namespace
}  // namespace sluice::config::test
