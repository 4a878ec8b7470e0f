// The trace of a run and its page: spans of every kind, which add up to the steps' seconds, and
// cost no bit.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "cli/json_text.hpp"
#include "trace_events.hpp"
#include "train_support.hpp"

namespace sluice::test {
namespace {

constexpr int kSteps = 8;

// Microseconds of [begin, end) that spans of `rows` cover.
double covered(const std::vector<TraceEvent>& events, const std::set<std::string>& rows,
               double begin, double end) {
  std::vector<std::pair<double, double>> spans;
  for (const TraceEvent& event : events) {
    if (rows.count(event.row) == 1)
      spans.emplace_back(std::max(begin, event.begin_us), std::min(end, event.end_us));
  }
  std::sort(spans.begin(), spans.end());
  double sum = 0;
  double reached = begin;
  for (const auto& [from, to] : spans) {
    sum += std::max(0.0, to - std::max(from, reached));
    reached = std::max(reached, to);
  }
  return sum;
}

class TraceOfARun : public ::testing::Test {
 protected:
  std::string trace_path(const std::string& report) const {
    return folder_.path(report) + "/trace.json";
  }
  // Trains and returns the trace.
  std::vector<TraceEvent> train(const TrainSetup& setup, std::vector<std::string> more = {}) {
    folder_.clear_swap();
    folder_.set(setup);
    more.insert(more.end(), {"--trace", trace_path("traced")});
    const ProgramResult result = folder_.train("traced", kSteps, more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return read_trace(trace_path("traced"));
  }
  TrainFolder folder_;
};

TEST_F(TraceOfARun, HasSpansOfEveryKindThatDoNotOverlapInTheirRow) {
  TrainSetup setup;
  setup.sluice_keys = "\"activations\": \"offload\", \"checkpoint_dir\": \"" +
                      folder_.checkpoints() + "\", \"checkpoint_every\": 4, ";
  const std::vector<TraceEvent> events =
      train(setup, {"--eval-fraction", "0.1", "--eval-every", "4"});
  std::map<std::string, int> rows;
  std::set<std::string> names;
  for (const TraceEvent& event : events) {
    ++rows[event.row];
    names.insert(event.name);
  }
  for (const char* row : {"step", "compute", "stalls", "gather", "h2d", "d2h", "update", "read",
                          "write", "commit", "checkpoint", "evaluation"})
    EXPECT_GT(rows[row], 0) << row;
  EXPECT_EQ(rows["step"], kSteps);
  EXPECT_EQ(rows["commit"], kSteps);
  EXPECT_EQ(rows["checkpoint"], 2);
  EXPECT_EQ(rows["evaluation"], 2);
  for (const char* name :
       {"forward h.0", "recompute+backward h.2", "loss head", "gather h.1", "evaluate embedding",
        "update h.1", "initialise h.1", "copy h.1", "read states.0.swap", "write states.1.swap"})
    EXPECT_EQ(names.count(name), 1U) << name;
  EXPECT_EQ(first_overlap(events), "");
  for (const TraceEvent& event : events) {
    if (event.row == "read" || event.row == "write") {
      EXPECT_GT(event.args.at("bytes"), 0);
    }
    if (event.name == "forward h.0") {
      EXPECT_EQ(event.args.at("micro_batches"), 4);
    }
  }
}

TEST_F(TraceOfARun, AddsUpToTheSecondsOfEachStep) {
  for (const bool overlap : {true, false}) {
    SCOPED_TRACE(overlap ? "overlap" : "no overlap");
    TrainSetup setup;
    if (!overlap) setup.sluice_keys = "\"overlap\": false, ";
    const std::vector<TraceEvent> events = train(setup);
    const auto seconds = column(folder_, "traced", "seconds");
    const auto computed = column(folder_, "traced", "compute_seconds");
    const auto committed = column(folder_, "traced", "commit_seconds");
    std::vector<double> shares;
    for (const TraceEvent& event : events) {
      if (event.row != "step") continue;
      const auto step = static_cast<std::size_t>(event.args.at("step") - 1);
      const double duration_us = event.end_us - event.begin_us;
      EXPECT_NEAR(1e-6 * duration_us, std::stod(seconds[step]), 1e-3);
      shares.push_back(
          covered(events, {"compute", "stalls", "commit"}, event.begin_us, event.end_us) /
          duration_us);
      double stalled = 0;
      for (const TraceEvent& stall : events) {
        if (stall.row == "stalls" && stall.begin_us >= event.begin_us &&
            stall.end_us <= event.end_us)
          stalled += 1e-6 * (stall.end_us - stall.begin_us);
      }
      const double rest = std::stod(seconds[step]) - std::stod(committed[step]) - stalled;
      EXPECT_NEAR(std::stod(computed[step]), rest, 1e-4) << "step " << step + 1;
    }
    ASSERT_EQ(shares.size(), static_cast<std::size_t>(kSteps));
    std::sort(shares.begin(), shares.end());
    // A step of a model this small takes some 10 ms, and others use the machine.
    EXPECT_GT(shares[kSteps / 2], 0.93);
    EXPECT_LE(shares.back(), 1.0);
  }
}

TEST_F(TraceOfARun, ChangesNoBit) {
  TrainSetup setup;
  train(setup);
  folder_.clear_swap();
  ASSERT_EQ(folder_.train("untraced", kSteps).exit_code, 0);
  EXPECT_EQ(column(folder_, "traced", "loss"), column(folder_, "untraced", "loss"));
  EXPECT_EQ(column(folder_, "traced", "grad_norm"), column(folder_, "untraced", "grad_norm"));
  EXPECT_EQ(column(folder_, "traced", "loss").size(), static_cast<std::size_t>(kSteps));
}

TEST_F(TraceOfARun, CanBeLimitedToSomeSteps) {
  const std::vector<TraceEvent> events = train({}, {"--trace-steps", "3-4"});
  std::set<std::int64_t> steps;
  std::set<std::int64_t> committed;
  bool initialised = false;
  for (const TraceEvent& event : events) {
    if (event.row == "step") steps.insert(event.args.at("step"));
    if (event.row == "commit") committed.insert(event.args.at("step"));
    initialised = initialised || event.name.starts_with("initialise");
  }
  EXPECT_EQ(steps, (std::set<std::int64_t>{3, 4}));
  EXPECT_EQ(committed, (std::set<std::int64_t>{2, 3, 4}));
  EXPECT_FALSE(initialised);
}

TEST_F(TraceOfARun, IsKeptWhenTheRunIsResumed) {
  folder_.set({});
  const std::vector<std::string> traced = {"--trace", trace_path("traced")};
  ASSERT_EQ(folder_.train("traced", 2, traced).exit_code, 0);
  const ProgramResult resumed =
      folder_.train("traced", 4, {"--resume", "--trace", trace_path("traced")});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  const auto steps_of = [](const std::vector<TraceEvent>& events) {
    std::vector<std::int64_t> steps;
    for (const TraceEvent& event : events)
      if (event.row == "step") steps.push_back(event.args.at("step"));
    return steps;
  };
  EXPECT_EQ(steps_of(read_trace(folder_.path("traced/trace.1.json"))),
            (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(steps_of(read_trace(trace_path("traced"))), (std::vector<std::int64_t>{3, 4}));
  // Its steps are done: the printed line to go on has the flags of the first run.
  const ProgramResult after = folder_.train(
      "traced", 5, {"--resume", "--trace", trace_path("traced"), "--trace-steps", "3-4"});
  ASSERT_EQ(after.exit_code, 0) << after.err;
  EXPECT_EQ(steps_of(read_trace(trace_path("traced"))), (std::vector<std::int64_t>{3, 4}));
}

TEST_F(TraceOfARun, IsWholeAfterASignalAndReadableAfterAKill) {
  folder_.set({});
  std::vector<std::string> line =
      folder_.arguments("traced", 100000, {"--trace", trace_path("traced")});
  const std::string steps = folder_.path("traced/steps.jsonl");
  EXPECT_TRUE(kill_after_line(line, steps, 5, std::chrono::milliseconds(5)));
  const ProgramResult page = run_sluice({"report", folder_.path("traced"), "--json"});
  ASSERT_EQ(page.exit_code, 0) << page.err;
  EXPECT_GT(parse_json(last_line(page.out))["traced_step"].asInt(), 0);
  line.emplace_back("--resume");
  Process resumed = start_sluice(line);
  ASSERT_TRUE(wait_for_lines(resumed, steps, 12));
  resumed.signal(SIGTERM);
  EXPECT_EQ(resumed.wait(), 143);
  EXPECT_FALSE(read_trace(trace_path("traced")).empty());
}

TEST_F(TraceOfARun, OnAFullDiskIsMissingAndTheRunGoesOn) {
  folder_.set({});
  const ProgramResult result = folder_.train("r", 1, {"--trace", "/dev/full"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("there is no trace"), std::string::npos) << result.err;
  EXPECT_EQ(result.out.find("trace: "), std::string::npos) << result.out;
}

TEST_F(TraceOfARun, IsRefusedBeforeAnythingIsMadeWhereItCannotBeWritten) {
  folder_.set({});
  write_file(folder_.path("notes"), "my notes");
  expect_refused(folder_.train("r", 1, {"--trace", folder_.path("notes")}), 2, {"is no trace"});
  EXPECT_EQ(file_text(folder_.path("notes")), "my notes");
  expect_refused(folder_.train("r", 1, {"--trace", folder_.path("no/trace.json")}), 4,
                 {"No such file or directory", "--trace"});
  expect_refused(folder_.train("r", 1, {"--trace", folder_.path("swap")}), 2, {"regular file"});
  expect_refused(folder_.train("r", 1, {"--trace", folder_.path("r/report.json")}), 2,
                 {"--report writes"});
  expect_refused(folder_.train("r", 1, {"--trace-steps", "1-2"}), 2, {"needs --trace"});
  EXPECT_TRUE(folder_.files("swap").empty());
}

}  // namespace
}  // namespace sluice::test
