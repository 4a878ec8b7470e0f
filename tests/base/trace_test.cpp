#include "sluice/base/trace.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "captured_log.hpp"
#include "file_text.hpp"
#include "in_child.hpp"
#include "sluice/base/error.hpp"
#include "soft_limit.hpp"
#include "temp_dir.hpp"
#include "trace_events.hpp"

namespace sluice {
namespace {

using std::chrono::microseconds;
using test::CapturedLog;
using test::file_text;
using test::FileLimit;
using test::read_trace;
using test::TempDir;
using test::TraceEvent;
using test::write_file;

TEST(Trace, IsAnArrayOfEventsWithNamedRowsInTheOrderOfTheirMaking) {
  const TempDir dir;
  const std::string path = dir.file("trace.json");
  const auto begin = TraceClock::now();
  {
    Trace trace(path, Trace::Old::replace);
    trace.row("compute");
    const TraceRow copies(&trace, "copies");
    const TraceRow compute(&trace, "compute");
    copies.add("copy", {}, begin + microseconds(100), begin + microseconds(150), {{"bytes", 4096}});
    compute.add("forward", "h.3", begin + microseconds(200), begin + microseconds(260),
                {{"step", 7}, {"micro_batches", 2}});
  }
  const std::vector<TraceEvent> events = read_trace(path);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].row, "copies");
  EXPECT_EQ(events[0].lane, "copies");
  EXPECT_EQ(events[0].name, "copy");
  EXPECT_EQ(events[0].args.at("bytes"), 4096);
  EXPECT_NEAR(events[0].end_us - events[0].begin_us, 50, 0.001);
  EXPECT_EQ(events[1].name, "forward h.3");
  EXPECT_EQ(events[1].args.at("step"), 7);
  EXPECT_NEAR(events[1].begin_us - events[0].begin_us, 100, 0.001);
  EXPECT_LT(events[1].sort_index, events[0].sort_index) << "the row was made first";
}

TEST(Trace, RefusesASpanOfARowThatItDidNotMake) {
  const test::TempDir dir;
  Trace trace(dir.file("trace.json"), Trace::Old::replace);
  const auto now = TraceClock::now();
  EXPECT_THROW(trace.add(0, "work", "", now, now, {}), InvalidArgument);
  const std::size_t row = trace.row("row");
  EXPECT_NO_THROW(trace.add(row, "work", "", now, now, {}));
  EXPECT_THROW(trace.add(row + 1, "work", "", now, now, {}), InvalidArgument);
}

TEST(Trace, CostsNothingAndRecordsNothingWithoutOne) {
  const TraceRow nowhere(nullptr, "compute");
  EXPECT_FALSE(nowhere.on());
  const TraceSpan span(nowhere, "forward", "h.3");
  nowhere.add("forward", "h.3", TraceClock::now(), TraceClock::now());
}

TEST(Trace, RecordsASpanThatAnExceptionEnds) {
  const TempDir dir;
  {
    Trace trace(dir.file("trace.json"), Trace::Old::replace);
    const TraceRow row(&trace, "compute");
    EXPECT_THROW(
        {
          const TraceSpan span(row, "forward", "h.3", {"step", 1});
          throw Error("no");
        },
        Error);
  }
  ASSERT_EQ(read_trace(dir.file("trace.json")).size(), 1U);
}

TEST(Trace, PutsWhatOverlapsInLanesOfItsRow) {
  const TempDir dir;
  const std::string path = dir.file("trace.json");
  const auto begin = TraceClock::now();
  {
    Trace trace(path, Trace::Old::replace);
    const TraceRow row(&trace, "read");
    const auto add = [&](int from, int to) {
      row.add("read", "file", begin + microseconds(1000 + from), begin + microseconds(1000 + to));
    };
    add(10, 20);
    add(20, 30);  // behind the first
    add(0, 40);   // around both
    add(35, 45);  // behind the second
    add(5, 50);
  }
  std::map<std::string, int> spans;
  const std::vector<TraceEvent> events = read_trace(path);
  for (const TraceEvent& event : events) ++spans[event.lane];
  EXPECT_EQ(spans, (std::map<std::string, int>{{"read", 3}, {"read (2)", 1}, {"read (3)", 1}}));
  EXPECT_EQ(test::first_overlap(events), "");
}

TEST(Trace, TakesNamesThatJsonWouldTrip) {
  const TempDir dir;
  const std::string path = dir.file("trace.json");
  const std::string name = "a \"quoted\" \\ name\nwith \x01 and \xC3\x28";
  {
    Trace trace(path, Trace::Old::replace);
    TraceRow(&trace, "r\"w")
        .add(name, std::string(5000, '"'), TraceClock::now(), TraceClock::now());
  }
  const std::vector<TraceEvent> events = read_trace(path);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].row, "r\"w");
  EXPECT_TRUE(events[0].name.starts_with("a \"quoted\" \\ name?with ? and ?( \"\""))
      << events[0].name;
}

TEST(Trace, TakesSpansOfManyThreads) {
  const TempDir dir;
  const std::string path = dir.file("trace.json");
  constexpr int kThreads = 4;
  constexpr int kSpans = 5000;
  {
    Trace trace(path, Trace::Old::replace);
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&trace, t] {
        const TraceRow own(&trace, "row " + std::to_string(t));
        const TraceRow shared(&trace, "shared");
        for (int i = 0; i < kSpans; ++i) {
          const TraceSpan span(i % 2 == 0 ? own : shared, "work", {}, {"i", i});
          if (i % 1000 == 0) trace.flush();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  const std::vector<TraceEvent> events = read_trace(path);
  EXPECT_EQ(events.size(), static_cast<std::size_t>(kThreads * kSpans));
  EXPECT_EQ(test::first_overlap(events), "");
}

TEST(Trace, IsValidWhileTheRunGoesOn) {
  const TempDir dir;
  const std::string path = dir.file("trace.json");
  Trace trace(path, Trace::Old::replace);
  EXPECT_EQ(read_trace(path).size(), 0U);
  const auto empty_bytes = std::filesystem::file_size(path);
  const TraceRow row(&trace, "compute");
  row.add("forward", "h.0", TraceClock::now(), TraceClock::now());
  trace.flush();
  // The writer is another thread.
  while (std::filesystem::file_size(path) == empty_bytes) std::this_thread::yield();
  EXPECT_EQ(read_trace(path).size(), 1U);
}

TEST(Trace, LeavesOutWhatEndsWhileItDoesNotRecord) {
  const TempDir dir;
  const std::string path = dir.file("trace.json");
  {
    Trace trace(path, Trace::Old::replace);
    const TraceRow row(&trace, "step");
    const auto now = TraceClock::now();
    trace.set_recording(false);
    row.add("step", "1", now, now);
    trace.set_recording(true);
    row.add("step", "2", now, now);
    trace.set_recording(false);
    row.add("step", "3", now, now);
  }
  const std::vector<TraceEvent> events = read_trace(path);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].name, "step 2");
}

TEST(Trace, EndsWithOneWarningAndWholeWhereTheDiskIsFull) {
  const TempDir dir;
  const std::string path = dir.file("trace.json");
  const CapturedLog log;
  {
    Trace trace(path, Trace::Old::replace, 64U << 10U);
    const TraceRow row(&trace, "compute");
    const FileLimit limit(200'000);
    for (int i = 0; i < 20'000; ++i) row.add("work", "unit", TraceClock::now(), TraceClock::now());
    trace.flush();
    while (log.messages().empty()) {
      row.add("work", "unit", TraceClock::now(), TraceClock::now());
      trace.flush();
    }
    for (int i = 0; i < 20'000; ++i) row.add("work", "unit", TraceClock::now(), TraceClock::now());
  }
  EXPECT_LE(std::filesystem::file_size(path), 200'000U);
  EXPECT_GT(read_trace(path).size(), 0U);
  int cut = 0;
  for (const auto& message : log.messages()) {
    if (message.text.find("the run goes on: " + path) == std::string::npos) continue;
    ++cut;
    EXPECT_EQ(message.level, LogLevel::warn);
  }
  EXPECT_EQ(cut, 1);
}

// NFS, CIFS and FUSE tell at a close that a write is lost.
TEST(Trace, SaysAtItsEndWhatTheDriveDidNotTake) {
  const TempDir dir;
  const std::string path = dir.file("trace.json");
  const std::string said = test::run_in_child([&] {
    const CapturedLog log;
    {
      Trace trace(path, Trace::Old::replace);
      const auto now = TraceClock::now();
      TraceRow(&trace, "compute").add("work", "unit", now, now);
      test::deny(__NR_close, EDQUOT);
    }
    return log.messages().empty() ? "nothing" : log.messages().front().text;
  });
  EXPECT_NE(said.find("the trace may lack what was written last"), std::string::npos) << said;
  EXPECT_NE(said.find(path), std::string::npos) << said;
  EXPECT_NE(said.find("Disk quota exceeded"), std::string::npos) << said;
}

// As on a disk that fills up later.
TEST(Trace, OnADiskThatIsFullFromTheBeginningThereIsNoneAndTheRunGoesOn) {
  const CapturedLog log;
  {
    Trace trace("/dev/full", Trace::Old::replace);
    const auto now = TraceClock::now();
    TraceRow(&trace, "compute").add("work", "unit", now, now);
    trace.flush();
  }
  EXPECT_TRUE(
      log.contains("there is no trace, the run goes on: /dev/full: No space left on device"));
  EXPECT_EQ(log.messages().size(), 1U);
}

TEST(Trace, DropsAndCountsWhatComesFasterThanTheFileTakesIt) {
  const TempDir dir;
  const std::string path = dir.file("trace.json");
  const CapturedLog log;
  constexpr std::size_t kSpans = 200'000;
  {
    Trace trace(path, Trace::Old::replace, 64U << 10U);
    const TraceRow row(&trace, "compute");
    const auto now = TraceClock::now();
    for (std::size_t i = 0; i < kSpans; ++i) row.add("work", "unit", now, now);
  }
  const std::size_t kept = read_trace(path).size();
  ASSERT_LE(kept, kSpans);
  const std::string lacks = "lacks " + std::to_string(kSpans - kept) + " spans";
  EXPECT_EQ(log.contains(lacks), kept < kSpans) << lacks;
  EXPECT_EQ(log.messages().empty(), kept == kSpans);
}

TEST(Trace, RefusesToReplaceWhatIsNoTrace) {
  const TempDir dir;
  const std::string path = dir.file("notes.txt");
  write_file(path, "my notes");
  EXPECT_THROW(check_trace_path(path), InvalidArgument);
  EXPECT_THROW(Trace(path, Trace::Old::replace), InvalidArgument);
  EXPECT_EQ(file_text(path), "my notes");
  EXPECT_THROW(check_trace_path(dir.path()), InvalidArgument);
  const std::string pipe = dir.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(check_trace_path(pipe), InvalidArgument);
  EXPECT_NO_THROW(check_trace_path(dir.file("absent")));
  EXPECT_THROW(Trace(dir.file("no/such/folder"), Trace::Old::replace), IoError);
}

TEST(Trace, ReplacesOrKeepsAnOlderOne) {
  const TempDir dir;
  const std::string path = dir.file("trace.json");
  const auto write_one = [&](Trace::Old old, const std::string& name) {
    Trace trace(path, old);
    TraceRow(&trace, "step").add(name, {}, TraceClock::now(), TraceClock::now());
  };
  write_one(Trace::Old::keep, "first");
  write_one(Trace::Old::replace, "second");
  ASSERT_EQ(read_trace(path).size(), 1U);
  write_one(Trace::Old::keep, "third");
  write_one(Trace::Old::keep, "fourth");
  EXPECT_EQ(read_trace(dir.file("trace.1.json")).at(0).name, "second");
  EXPECT_EQ(read_trace(dir.file("trace.2.json")).at(0).name, "third");
  EXPECT_EQ(read_trace(path).at(0).name, "fourth");
}

TEST(Trace, IsWrittenByOneRunAtATime) {
  const TempDir dir;
  const std::string path = dir.file("trace.json");
  const Trace first(path, Trace::Old::replace);
  EXPECT_THROW(Trace(path, Trace::Old::replace), StorageError);
  // The child allocates nothing: at the fork the thread that writes may hold the allocator's lock.
  const std::string said = test::run_in_child([&] {
    for (int fd = 0; fd < 1024; ++fd) {
      char entry[32];
      std::snprintf(entry, sizeof(entry), "/proc/self/fd/%d", fd);
      char target[PATH_MAX];
      const ssize_t size = ::readlink(entry, target, sizeof(target));
      if (size > 0 && std::string_view(target, static_cast<std::size_t>(size)) == path)
        return "has the file";
    }
    return "";
  });
  EXPECT_EQ(said, "") << "a child that lives longer";
}

}  // namespace
}  // namespace sluice
