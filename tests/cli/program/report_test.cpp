// `sluice report` on what runs leave behind: whole, interrupted, damaged, long, empty.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <regex>

#include "cli/json_text.hpp"
#include "cli/run_program.hpp"
#include "sluice/base/trace.hpp"

namespace sluice::test {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kExitUsage = 2;
constexpr int kExitStorage = 4;

std::string step_line(int step, const std::string& loss = "3.5", const std::string& more = "") {
  return "{\"step\":" + std::to_string(step) + ",\"loss\":" + loss +
         ",\"lr\":0.001,\"grad_norm\":1,\"tokens\":512,\"seconds\":0.5,\"skipped\":" +
         (loss == "null" ? "true" : "false") +
         ",\"bytes\":{\"h2d\":1000,\"d2h\":2000,\"nvme_read\":4194304,\"nvme_write\":3145728},"
         "\"stall_seconds\":{\"h2d\":0,\"d2h\":0,\"nvme_read\":0.1,\"nvme_write\":0,\"update\":0."
         "05},"
         "\"commit_seconds\":0.01,\"compute_seconds\":0.34" +
         more + "}\n";
}

constexpr const char* kReportJson = R"({
  "parameters": 842496, "state_bytes": 13479936,
  "budget_bytes": {"device": 67108864, "host": 41943040, "nvme": 0},
  "planned_bytes": {"device": 12582912, "host": 15728640, "nvme": 22020096},
  "peak_bytes": {"device": 11534336, "host": 15728640, "nvme": 22020096, "pinned": 0},
  "runtime_bytes": {"planned": 201326592, "measured": 75497472}, "rss_peak_bytes": 104857600,
  "tokens_per_second": 1024, "step_seconds": 0.5,
  "limits_seconds": {"h2d": 0.001, "d2h": 0.002, "nvme_read": 0.25, "nvme_write": 0.3,
                     "update": 0.05, "compute": 0.34},
  "bound_by": "compute", "last_step": 3, "committed_step": 3,
  "choices": ["<script>alert('&')</script>"], "versions": {"sluice": "1.2.3"},
  "commit": "abcdef", "command": "sluice train --data 'it & that'"})";

class Report : public ::testing::Test {
 protected:
  Report() { std::filesystem::create_directory(run()); }
  std::string run() const { return directory_.file("run"); }
  std::string page() const { return file_text(run() + "/report.html"); }
  void write_steps(const std::string& text) const { write_file(run() + "/steps.jsonl", text); }
  void write_report() const { write_file(run() + "/report.json", kReportJson); }
  // A trace of `steps` steps of 10 ms, each with a forward of 6 ms that 3000 short reads lie under.
  void write_trace(const std::string& path, int steps) const {
    Trace trace(path, Trace::Old::replace);
    const TraceRow rows[] = {TraceRow(&trace, "step"), TraceRow(&trace, "compute"),
                             TraceRow(&trace, "read")};
    const auto start = TraceClock::now();
    for (int step = 1; step <= steps; ++step) {
      const auto begin = start + milliseconds(10 * step);
      rows[1].add("forward", "h.0", begin, begin + milliseconds(6), {{"step", step}});
      for (int i = 0; i < 3000; ++i) {
        const auto at = begin + std::chrono::microseconds(2 * i);
        rows[2].add("read", "states", at, at + std::chrono::microseconds(1), {{"bytes", 4096}});
      }
      rows[0].add("step", std::to_string(step), begin, begin + milliseconds(10),
                  {{"step", step}, {"tokens", 512}});
    }
  }
  ProgramResult report(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"report", run()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_sluice(arguments);
  }
  TempDir directory_;
};

TEST_F(Report, IsOneSelfContainedPageOfARun) {
  write_steps(step_line(1) + step_line(2) + step_line(3, "3.25", ",\"eval_loss\":3.75"));
  write_report();
  const ProgramResult result = report({"--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json::Value object = parse_json(last_line(result.out));
  EXPECT_EQ(object["out"].asString(), run() + "/report.html");
  EXPECT_EQ(object["steps"].asInt(), 3);
  EXPECT_EQ(object["loss"].asDouble(), 3.25);
  EXPECT_EQ(object["eval_loss"].asDouble(), 3.75);
  EXPECT_EQ(object["tokens_per_second"].asDouble(), 1024);
  EXPECT_TRUE(object["trace"].isNull());
  const std::string text = page();
  EXPECT_EQ(object["page_bytes"].asUInt64(), text.size());
  for (const char* part : {"Loss", "evaluation", "Learning rate", "Tokens per second",
                           "waits for update", "for nvme read", "bound by compute", "4.00 MiB",
                           "842,496 parameters", "abcdef", "1.2.3", "64.0 MiB"})
    EXPECT_THAT(text, HasSubstr(part));
  for (const char* outside : {"http:", "https:", "src=", "href=", "@import", "url(", "<script"})
    EXPECT_THAT(text, Not(HasSubstr(outside)));
  EXPECT_THAT(text, HasSubstr("&lt;script&gt;alert(&#39;&amp;&#39;)&lt;/script&gt;"));
  EXPECT_THAT(text, HasSubstr("sluice train --data &#39;it &amp; that&#39;"));
}

TEST_F(Report, TellsTheStepsOfAResumedRunFromThoseBeforeIt) {
  const std::string moved = "{\"nvme_read\":1048576,\"nvme_write\":0}";
  const std::string resumed =
      R"({"step":3,"loss":3,"tokens":512,"seconds":0.5,"bytes":)" + moved + "}\n";
  write_steps(step_line(1) + step_line(2) + resumed);
  Json::Value report_json = parse_json(kReportJson);
  report_json["steps"] = 1;
  report_json["tokens_per_second"] = 512;
  write_file(run() + "/report.json", report_json.toStyledString());
  ASSERT_EQ(report().exit_code, 0);
  EXPECT_THAT(page(), HasSubstr("steps 1 to 3, resumed after step 2;"));
  EXPECT_THAT(page(), HasSubstr("1,024 tokens/s over all these steps; 512 tokens/s since step 2"));
  EXPECT_THAT(page(), HasSubstr("(median since step 2)"));
  EXPECT_THAT(page(), HasSubstr("<td>1.00 MiB</td>"));  // not the mean of all three steps

  report_json["steps"] = 3;
  write_file(run() + "/report.json", report_json.toStyledString());
  ASSERT_EQ(report().exit_code, 0);
  EXPECT_THAT(page(), Not(HasSubstr("resumed")));
}

TEST_F(Report, SaysHowToGetATraceWhereThereIsNone) {
  write_steps(step_line(1));
  ASSERT_EQ(report().exit_code, 0);
  EXPECT_THAT(page(), HasSubstr("sluice train --trace " + run() + "/trace.json"));
  EXPECT_THAT(report({"--step", "1"}).err, HasSubstr("--step needs a trace"));
}

TEST_F(Report, DrawsTheStepOfATraceThatIsAskedFor) {
  write_steps(step_line(1) + step_line(2) + step_line(3));
  write_trace(run() + "/trace.json", 3);
  EXPECT_EQ(report({"--json"}).exit_code, 0);
  const ProgramResult third = report({"--step", "3", "--json"});
  ASSERT_EQ(third.exit_code, 0) << third.err;
  EXPECT_EQ(parse_json(last_line(third.out))["traced_step"].asInt(), 3);
  const std::string text = page();
  EXPECT_THAT(text, HasSubstr("<title>forward h.0: 6.000 ms from 0.000 ms; step 3</title>"));
  EXPECT_THAT(text, HasSubstr(" spans, read states: "));
  EXPECT_LT(text.size(), 600'000U) << "3000 spans in 460 columns";
  const ProgramResult fourth = report({"--step", "4"});
  EXPECT_EQ(fourth.exit_code, kExitUsage);
  EXPECT_THAT(fourth.err, HasSubstr("has no whole step 4"));
}

TEST_F(Report, TakesATraceThatAKilledRunLeft) {
  write_steps(step_line(1) + step_line(2));
  const std::string path = directory_.file("elsewhere.json");
  write_trace(path, 2);
  std::string text = file_text(path);
  write_file(path, text.substr(0, text.rfind("{\"ph\"") + 30));  // in the middle of the last step
  const ProgramResult result = report({"--trace", path, "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(parse_json(last_line(result.out))["traced_step"].asInt(), 1);
}

TEST_F(Report, PassesOverALineOfATraceThatIsNestedWithoutEnd) {
  write_steps(step_line(1) + step_line(2));
  const std::string path = run() + "/trace.json";
  write_trace(path, 2);
  std::string text = file_text(path);
  text.insert(text.rfind("\n]"),
              ",\n{\"ph\":\"X\",\"cat\":\"step\",\"args\":" + std::string(5000, '['));
  write_file(path, text);
  const ProgramResult result = report({"--step", "2", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(parse_json(last_line(result.out))["traced_step"].asInt(), 2);
}

TEST_F(Report, RefusesATraceThatIsNoneOrAbsent) {
  write_steps(step_line(1));
  write_file(directory_.file("other.json"), "[{\"ph\":\"X\"}]");
  const ProgramResult other = report({"--trace", directory_.file("other.json")});
  EXPECT_EQ(other.exit_code, kExitUsage);
  EXPECT_THAT(other.err, HasSubstr("no trace that sluice train wrote"));
  const ProgramResult absent = report({"--trace", directory_.file("absent.json")});
  EXPECT_EQ(absent.exit_code, kExitUsage);
  EXPECT_THAT(absent.err, HasSubstr("--trace: "));
}

TEST_F(Report, ShowsARunOfOneStepAndOneThatOnlyEvaluated) {
  write_steps(step_line(1));
  write_report();
  ASSERT_EQ(report().exit_code, 0);
  EXPECT_THAT(page(), HasSubstr("<circle class=\"dot"));
  EXPECT_THAT(page(), Not(HasSubstr("nan")));
  write_steps("");
  ASSERT_EQ(report().exit_code, 0);
  EXPECT_THAT(page(), Not(HasSubstr("Learning rate")));
  EXPECT_THAT(page(), HasSubstr("Memory"));
}

TEST_F(Report, ShowsARunWithoutItsReportAndWithACutLastLine) {
  write_steps(step_line(1) + step_line(2) + "{\"step\":3,\"los");
  const ProgramResult result = report({"--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(parse_json(last_line(result.out))["steps"].asInt(), 2);
  EXPECT_FALSE(parse_json(last_line(result.out))["has_report"].asBool());
  EXPECT_THAT(page(), HasSubstr("There is no report.json"));
  EXPECT_THAT(page(), HasSubstr("The last line of steps.jsonl is cut"));
}

TEST_F(Report, CountsStepsWithoutALine) {
  write_steps(step_line(2) + step_line(3) + step_line(6) + step_line(8));
  const ProgramResult result = report({"--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(parse_json(last_line(result.out))["missing_steps"].asInt(), 3);
  EXPECT_THAT(page(), HasSubstr("Steps without a line in steps.jsonl: 3."));
  write_steps(step_line(2) + step_line(3));
  ASSERT_EQ(report().exit_code, 0);
  EXPECT_THAT(page(), Not(HasSubstr("without a line")));
}

TEST_F(Report, LeavesGapsWhereTheLossIsNotANumber) {
  write_steps(step_line(1) + step_line(2, "null") + step_line(3) + step_line(4, "null"));
  ASSERT_EQ(report().exit_code, 0);
  const std::string text = page();
  EXPECT_THAT(text, HasSubstr("steps 2, 4; 2 in all"));
  EXPECT_THAT(text, HasSubstr("<title>step 2: skipped</title>"));
  EXPECT_THAT(text, Not(HasSubstr("nan")));
}

TEST_F(Report, ShowsARunWithoutASingleLoss) {
  write_steps(step_line(1, "null") + step_line(2, "null"));
  ASSERT_EQ(report().exit_code, 0);
  EXPECT_THAT(page(), Not(HasSubstr("nan")));
  EXPECT_THAT(page(), Not(HasSubstr("inf")));
}

TEST_F(Report, NamesTheLineThatIsDamaged) {
  const std::pair<std::string, std::string> damages[] = {
      {"{\"step\":2,\"loss\"\n", ":2: a damaged line"},
      {"[1, 2]\n", ":2: a damaged line"},
      {"\n", ":2: a damaged line"},
      {"{\"step\":\"two\"}\n", "number as \"step\""},
      {"{\"step\":2,\"bytes\":7}\n", "\"bytes\""},
      {step_line(1), "step 1 comes after step 1"}};
  for (const auto& [line, message] : damages) {
    SCOPED_TRACE(line);
    write_steps(step_line(1) + line + step_line(3));
    const ProgramResult result = report();
    EXPECT_EQ(result.exit_code, kExitStorage);
    EXPECT_THAT(result.err, HasSubstr(run() + "/steps.jsonl:2"));
    EXPECT_THAT(result.err, HasSubstr(message));
    EXPECT_FALSE(std::filesystem::exists(run() + "/report.html"));
  }
  write_steps("{\"step\":-3}\n" + step_line(1));
  EXPECT_THAT(report().err,
              HasSubstr("steps.jsonl:1: a damaged line: expected a step's number as"));
  write_steps(step_line(1));
  write_file(run() + "/report.json", "{");
  const ProgramResult result = report();
  EXPECT_EQ(result.exit_code, kExitStorage);
  EXPECT_THAT(result.err, HasSubstr("report.json"));
}

TEST_F(Report, RefusesDirectoriesWithoutARun) {
  ProgramResult result = report();
  EXPECT_EQ(result.exit_code, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("there is no steps.jsonl and no report.json"));
  write_steps("");
  result = report();
  EXPECT_EQ(result.exit_code, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("no step of the run has ended yet"));
  result = run_sluice({"report", directory_.file("absent")});
  EXPECT_EQ(result.exit_code, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("there is no such directory"));
  result = run_sluice({"report", run() + "/steps.jsonl"});
  EXPECT_EQ(result.exit_code, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("expected the directory"));
}

TEST_F(Report, ReplacesAPageButNothingElse) {
  write_steps(step_line(1));
  write_trace(run() + "/trace.json", 1);
  ASSERT_EQ(report().exit_code, 0);
  ASSERT_EQ(report().exit_code, 0);
  for (const char* name : {"/steps.jsonl", "/trace.json", "/../run/steps.jsonl"}) {
    const ProgramResult result = report({"--out", run() + name});
    EXPECT_EQ(result.exit_code, kExitUsage);
    EXPECT_THAT(result.err, HasSubstr("one of the files that are read"));
  }
  EXPECT_EQ(file_text(run() + "/steps.jsonl"), step_line(1));
  const std::string notes = directory_.file("notes.txt");
  std::ofstream(notes) << "mine";
  const ProgramResult refused = report({"--out", notes});
  EXPECT_EQ(refused.exit_code, kExitUsage);
  EXPECT_THAT(refused.err, HasSubstr("holds something else than a page"));
  EXPECT_EQ(file_text(notes), "mine");
  std::ofstream(notes, std::ios::trunc).flush();
  EXPECT_EQ(report({"--out", notes}).exit_code, 0) << "an empty file";
  const ProgramResult nowhere = report({"--out", directory_.file("no/page.html")});
  EXPECT_EQ(nowhere.exit_code, kExitStorage);
  std::filesystem::remove(run() + "/report.html");
  std::filesystem::create_symlink("/nowhere/page.html", run() + "/report.html");
  EXPECT_THAT(report({}).err, HasSubstr("(given as the default of --out)"));
  EXPECT_EQ(report({"--out", "/dev/full"}).exit_code, kExitStorage);
  EXPECT_EQ(report({"--out", directory_.path()}).exit_code, kExitUsage);
}

TEST_F(Report, OfManyStepsIsNoLargerThanOfFew) {
  std::string lines;
  for (int step = 1; step <= 1600; ++step) lines += step_line(step, std::to_string(5.0 / step));
  write_steps(lines);
  ASSERT_EQ(report().exit_code, 0);
  const std::size_t few = page().size();
  for (int step = 1601; step <= 50'000; ++step) lines += step_line(step, std::to_string(step % 7));
  write_steps(lines);
  ASSERT_EQ(report().exit_code, 0);
  EXPECT_LT(page().size(), few + few / 4);
  EXPECT_THAT(page(), HasSubstr("the mean of 64 steps"));
}

}  // namespace
}  // namespace sluice::test
