// The files of the monitors. tests/peers reads them with TensorBoard's own reader.
#include "record/monitors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "captured_log.hpp"
#include "file_text.hpp"
#include "in_child.hpp"
#include "message_of.hpp"
#include "record/step_lines.hpp"
#include "sluice/base/error.hpp"
#include "soft_limit.hpp"
#include "temp_dir.hpp"

namespace sluice::train {
namespace {

namespace fs = std::filesystem;

using sluice::test::names_in;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

StepRecord record_of(std::int64_t step) {
  StepRecord record;
  record.step = step;
  record.loss = 5.5 - static_cast<double>(step) / 8;
  record.lr = 1e-5 * static_cast<double>(step);
  record.grad_norm = 2;
  return record;
}

config::MonitorsConfig both_in(const std::string& directory) {
  config::MonitorsConfig config;
  config.tensorboard = {true, directory, "events"};
  config.csv = {true, directory, "csv"};
  return config;
}

template <typename T>
T number_at(const std::string& bytes, std::size_t offset) {
  T value{};
  EXPECT_LE(offset + sizeof(T), bytes.size());
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

std::uint32_t masked(const std::string& bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15U) | (crc << 17U)) + 0xA282EAD8U;
}

// The data of the records; every length and checksum is compared.
std::vector<std::string> records_of(const std::string& path) {
  const std::string bytes = test::file_text(path);
  std::vector<std::string> records;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto length = number_at<std::uint64_t>(bytes, at);
    EXPECT_EQ(number_at<std::uint32_t>(bytes, at + 8), masked(bytes.substr(at, 8)));
    records.push_back(bytes.substr(at + 12, length));
    EXPECT_EQ(number_at<std::uint32_t>(bytes, at + 12 + length), masked(records.back()));
    at += 16 + length;
  }
  return records;
}

TEST(Crc32c, IsThatOfRfc3720) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43U);
}

TEST(EventFile, BeginsWithASessionAndHoldsOneEventForEachScalar) {
  const test::TempDir directory;
  EventFile file(directory.file("events"), 24);
  file.append({{"Train/Samples/lr", 0.25}}, 300);
  const std::vector<std::string> records = records_of(file.path());
  ASSERT_EQ(records.size(), 3U);
  // wall_time: 9 bytes. step 24: 0x10 0x18. file_version: 0x1a. session_log: 0x3a.
  EXPECT_EQ(records[0].substr(9),
            "\x10\x18\x1a\x0d"
            "brain.Event:2");
  EXPECT_EQ(records[1].substr(9), "\x10\x18\x3a\x02\x08\x01");
  // step 300 takes two bytes; 0.25f is 0x3e800000.
  EXPECT_EQ(records[2].substr(9), std::string("\x10\xac\x02\x2a\x19\x0a\x17\x0a\x10"
                                              "Train/Samples/lr\x15\x00\x00\x80\x3e",
                                              30));
  EXPECT_GT(number_at<double>(records[2], 1), 1.7e9);
}

TEST(EventFile, SortsBehindThoseThatAreThere) {
  const test::TempDir directory;
  const std::string old = directory.file("events.out.tfevents.9999999997.zz.1.0");
  std::ofstream(old) << "x";
  const EventFile first(directory.path(), 1);
  const EventFile second(directory.path(), 1);
  EXPECT_LT(old, first.path());
  EXPECT_LT(first.path(), second.path());
}

TEST(PythonNumber, IsWrittenAsPythonDoes) {
  EXPECT_EQ(python_number(0), "0.0");
  EXPECT_EQ(python_number(0.0003), "0.0003");
  EXPECT_EQ(python_number(0.0001), "0.0001");
  EXPECT_EQ(python_number(0.00001), "1e-05");
  EXPECT_EQ(python_number(1.25e-7), "1.25e-07");
  EXPECT_EQ(python_number(65536), "65536.0");
  EXPECT_EQ(python_number(1e15), "1000000000000000.0");
  EXPECT_EQ(python_number(1e16), "1e+16");
  EXPECT_EQ(python_number(-1.0 / 3), "-0.3333333333333333");
  EXPECT_EQ(python_number(std::nan("")), "nan");
}

TEST(Scalars, HaveDeepSpeedsNames) {
  StepRecord record = record_of(4);
  record.seconds = 1;
  record.parts.forward_seconds = 0.25;
  record.parts.backward_seconds = 0.5;
  const auto names = [](const std::vector<Scalar>& scalars) {
    std::string text;
    for (const Scalar& scalar : scalars) text += scalar.tag.substr(14) + " ";
    return text;
  };
  EXPECT_EQ(names(scalars_of(record, false)), "train_loss lr grad_norm ");
  record.loss_scale = 1024;
  record.eval_loss = 3;
  const std::vector<Scalar> all = scalars_of(record, true);
  EXPECT_EQ(names(all),
            "train_loss lr grad_norm loss_scale eval_loss elapsed_time_ms_forward "
            "elapsed_time_ms_backward elapsed_time_ms_backward_inner "
            "elapsed_time_ms_backward_allreduce elapsed_time_ms_step ");
  EXPECT_EQ(all[5].value, 250);
  EXPECT_EQ(all[6].value, 500);
  EXPECT_EQ(all[9].value, 250);
}

TEST(Monitors, WriteRowsAsDeepSpeedDoes) {
  const test::TempDir directory;
  Monitors monitors(both_in(directory.file("")), 0, 8);
  monitors.append(record_of(1));
  monitors.append(record_of(2));
  EXPECT_THAT(names_in(directory.file("csv")),
              ElementsAre("Train_Samples_grad_norm.csv", "Train_Samples_lr.csv",
                          "Train_Samples_train_loss.csv"));
  EXPECT_EQ(test::file_text(directory.file("csv/Train_Samples_lr.csv")),
            "step,lr\r\n8,1e-05\r\n16,2e-05\r\n");
  EXPECT_EQ(test::file_text(directory.file("csv/Train_Samples_train_loss.csv")),
            "step,train_loss\r\n8,5.375\r\n16,5.25\r\n");
}

TEST(Monitors, OfAResumedRunHaveEveryStepOnce) {
  const test::TempDir directory;
  const config::MonitorsConfig config = both_in(directory.file(""));
  {
    Monitors monitors(config, 0, 8);
    for (int step = 1; step <= 4; ++step) monitors.append(record_of(step));
  }
  // A row that was torn when the run was killed.
  std::ofstream(directory.file("csv/Train_Samples_lr.csv"), std::ios::app) << "40,5e";
  {
    Monitors monitors(config, 2, 8);  // steps 3 and 4 were not committed
    for (int step = 3; step <= 5; ++step) monitors.append(record_of(step));
  }
  EXPECT_EQ(test::file_text(directory.file("csv/Train_Samples_lr.csv")),
            "step,lr\r\n8,1e-05\r\n16,2e-05\r\n24,3.0000000000000004e-05\r\n32,4e-05\r\n"
            "40,5e-05\r\n");
  const std::vector<std::string> events = names_in(directory.file("events"));
  ASSERT_EQ(events.size(), 2U);
  // The session of the second file begins behind step 2: at 17 samples.
  EXPECT_EQ(records_of(directory.file("events/" + events[1]))[1].substr(9),
            "\x10\x11\x3a\x02\x08\x01");
}

TEST(Monitors, WithoutACommittedStepGoOnWhereTheRatesHaveOne) {
  const test::TempDir directory;
  config::MonitorsConfig config;
  config.csv = {true, directory.path(), ""};
  test::write_file(directory.file("Train_Samples_lr.csv"), "step,lr\r\n8,0.5\r\n24,0.5\r\n");
  const std::string losses = directory.file("Train_Samples_eval_loss.csv");
  test::write_file(losses, "step,eval_loss\r\n24,2.5\r\n");
  for (int kills = 0; kills < 2; ++kills) {
    { const Monitors monitors(config, 2, 8); }
    EXPECT_EQ(test::file_text(losses), "step,eval_loss\r\n");
    EXPECT_EQ(names_in(directory.path()).size(), 2U);
  }
  test::write_file(directory.file("Train_Samples_lr.csv"), "step,lr\r\n24,0.5\r\n");
  { const Monitors monitors(config, 2, 8); }
  EXPECT_EQ(names_in(directory.path()).size(), 4U) << "both are of an earlier run";
}

config::TrainConfig with_batch(std::int64_t batch) {
  config::TrainConfig config;
  config.micro_batch_size = config.train_batch_size = batch;
  config.gradient_accumulation_steps = 1;
  return config;
}

TEST(Monitors, OfARunWithAnotherBatchGoOnAtItsSamplesSoFar) {
  const auto samples_of = [](std::int64_t before, std::int64_t now) {
    const test::TempDir directory;
    models::RunState state;
    // Takes steps; the state is of `committed`.
    const auto run = [&](std::int64_t batch, std::int64_t last, std::int64_t committed) {
      const config::TrainConfig config = with_batch(batch);
      const SamplesAxis axis = axis_behind(state.step == 0 ? nullptr : &state, config);
      state.settings.clear();
      note_axis(axis, config, state.settings);
      Monitors monitors(both_in(directory.file("")), state.step, axis);
      while (state.step < last) monitors.append(record_of(++state.step));
      state.step = committed;
    };
    run(before, 6, 4);
    run(now, 6, 6);
    run(before, 7, 7);
    std::istringstream rows(test::file_text(directory.file("csv/Train_Samples_lr.csv")));
    std::vector<std::string> samples;
    for (std::string row; std::getline(rows, row);) samples.push_back(row.substr(0, row.find(',')));
    EXPECT_EQ(names_in(directory.file("csv")).size(), 3U) << "no file is put aside";
    return samples;
  };
  EXPECT_THAT(samples_of(2, 1), ElementsAre("step", "2", "4", "6", "8", "9", "10", "12"));
  EXPECT_THAT(samples_of(1, 2), ElementsAre("step", "1", "2", "3", "4", "6", "8", "9"));
  models::RunState of_older_version;
  of_older_version.step = 4;
  EXPECT_EQ(axis_behind(&of_older_version, with_batch(3)).at(5), 15);
}

TEST(Monitors, OfANewRunLeaveTheRowsOfAnEarlierOne) {
  const test::TempDir directory;
  const config::MonitorsConfig config = both_in(directory.file(""));
  Monitors(config, 0, 8).append(record_of(1));
  Monitors(config, 0, 4).append(record_of(1));
  EXPECT_EQ(test::file_text(directory.file("csv/Train_Samples_lr.csv")), "step,lr\r\n4,1e-05\r\n");
  EXPECT_EQ(test::file_text(directory.file("csv/Train_Samples_lr.1.csv")),
            "step,lr\r\n8,1e-05\r\n");
}

TEST(Monitors, ThatAreOffWriteNothing) {
  const test::TempDir directory;
  config::MonitorsConfig config = both_in(directory.file("logs"));
  config.tensorboard.enabled = config.csv.enabled = false;
  Monitors(config, 0, 8).append(record_of(1));
  EXPECT_FALSE(std::filesystem::exists(directory.file("logs")));
}

TEST(Monitors, RefuseAFileThatAnotherRunWrites) {
  const test::TempDir directory;
  const config::MonitorsConfig config = both_in(directory.file(""));
  Monitors first(config, 0, 8);
  first.append(record_of(1));
  EXPECT_THAT(sluice::test::message_of([&] { const Monitors second(config, 1, 8); }),
              HasSubstr("is being written by another run: give each its own "
                        "csv_monitor.job_name"));
  EXPECT_EQ(names_in(directory.file("events")).size(), 1U)
      << "TensorBoard would leave the first run's file for a newer one";
}

TEST(StepLines, WaitWhileTheyCannotBeWritten) {
  const test::TempDir dir;
  std::optional<StepLines> lines(std::in_place, dir.file("report"), both_in(dir.path()), 0, 1);
  lines->append(record_of(1));
  const std::string steps = dir.file("report") + "/steps.jsonl";
  const std::string before = test::file_text(steps);
  {
    const test::FileLimit limit(before.size() + 3);
    for (const std::int64_t step : {2, 3}) lines->append(record_of(step));
    EXPECT_EQ(test::file_text(steps).size(), before.size() + 3)
        << "a torn line, which --resume cuts off";
    EXPECT_THAT(sluice::test::message_of<IoError>([&] { lines->finish(); }), HasSubstr(steps));
  }
  lines->append(record_of(4));
  lines->finish();
  std::istringstream all(test::file_text(steps));
  std::int64_t step = 0;
  for (std::string line; std::getline(all, line);)
    EXPECT_THAT(line, StartsWith("{\"step\":" + std::to_string(++step) + ","));
  EXPECT_EQ(step, 4);
  // No value of the monitors is missing either, and none is there twice.
  const std::string rows = test::file_text(dir.file("csv/Train_Samples_lr.csv"));
  for (const char* const each : {"step,lr\r\n1,", "\n2,", "\n3,", "\n4,"})
    EXPECT_EQ(rows.find(each), rows.rfind(each)) << rows;
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 5);
  const std::vector<std::string> events = names_in(dir.file("events"));
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(records_of(dir.file("events/" + events[0])).size(), 2U + 4 * 3);
}

TEST(StepLines, GoOnBehindTheLastStepThatCounts) {
  const test::TempDir dir;
  constexpr std::int64_t kSteps = 2000;  // more than one read takes
  const std::string steps = dir.file("steps.jsonl");
  std::string kept;
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    const std::string line = to_json_line(record_of(step)) + "\n";
    std::ofstream(steps, std::ios::app) << line;
    if (step < kSteps - 10) kept += line;
  }
  std::ofstream(steps, std::ios::app) << to_json_line(record_of(kSteps + 1));  // torn
  { const StepLines lines(dir.path(), {}, kSteps + 1, 1); }
  EXPECT_THAT(test::file_text(steps), EndsWith(to_json_line(record_of(kSteps)) + "\n"));
  { const StepLines lines(dir.path(), {}, kSteps - 11, 1); }
  EXPECT_EQ(test::file_text(steps), kept);
}

TEST(StepLines, AFileThatCannotBeReadIsNotTakenForAnEarlierRuns) {
  const test::TempDir dir;
  const std::string steps = dir.file("steps.jsonl");
  std::ofstream(steps) << to_json_line(record_of(1)) << "\n";
  const std::string said = test::run_in_child([&]() -> std::string {
    test::deny(__NR_read, EIO);
    test::deny(__NR_pread64, EIO);
    const StepLines lines(dir.path(), {}, 1, 1);
    return "nothing";
  });
  EXPECT_THAT(said, AllOf(HasSubstr(steps), HasSubstr("Input/output error")));
  EXPECT_THAT(names_in(dir.path()), ElementsAre("steps.jsonl"));
}

TEST(StepLines, GoToAnotherFileWhereTheirsWasTakenAway) {
  const test::TempDir dir;
  StepLines lines(dir.file("report"), both_in(dir.path()), 0, 1);
  const std::string steps = dir.file("report") + "/steps.jsonl";
  const std::string rows = dir.file("csv/Train_Samples_lr.csv");
  lines.append(record_of(1));
  {
    const test::CapturedLog log;
    fs::remove(rows);
    fs::rename(steps, dir.file("report") + "/steps.old");  // as logrotate does
    std::ofstream(steps).flush();
    lines.append(record_of(2));
    lines.append(record_of(3));
    EXPECT_TRUE(log.contains(steps + ": was removed or replaced while the run wrote to it"));
    EXPECT_TRUE(log.contains(rows + ": was removed or replaced"));
    EXPECT_EQ(log.messages().size(), 2U) << "said once";
  }
  const std::string text = test::file_text(steps);
  EXPECT_THAT(text, StartsWith("{\"step\":2,"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  EXPECT_THAT(test::file_text(rows), StartsWith("step,lr\r\n2,"));
  {
    const test::CapturedLog log;
    fs::rename(dir.file("report"), dir.file("away"));
    lines.append(record_of(4));
    lines.append(record_of(5));
    EXPECT_TRUE(log.contains("lines of steps wait from step 4 on")) << "at that step";
    EXPECT_THROW(lines.finish(), IoError);
    fs::create_directory(dir.file("report"));
    lines.append(record_of(6));
  }
  lines.finish();
  EXPECT_THAT(test::file_text(steps), StartsWith("{\"step\":4,"));
}

// NFS, CIFS and FUSE tell at a close that a write is lost.
TEST(StepLines, HearAtTheirEndWhatTheDriveDidNotTake) {
  const test::TempDir dir;
  const auto said_with = [&](const std::string& report, const config::MonitorsConfig& monitors) {
    return test::run_in_child([&]() -> std::string {
      StepLines lines(report, monitors, 0, 1);
      lines.append(record_of(1));
      test::deny(__NR_close, EDQUOT);
      lines.finish();
      return "nothing";
    });
  };
  config::MonitorsConfig events = both_in(dir.path());
  config::MonitorsConfig rows = events;
  events.csv.enabled = rows.tensorboard.enabled = false;
  const auto names = [](const std::string& file) {
    return AllOf(HasSubstr(file), HasSubstr("close"), HasSubstr("Disk quota exceeded"));
  };
  EXPECT_THAT(said_with(dir.path(), {}), names(dir.file("steps.jsonl")));
  EXPECT_THAT(said_with("", events), names(dir.file("events/events.out.tfevents.")));
  EXPECT_THAT(said_with("", rows), names(dir.file("csv/Train_Samples_")));
}

}  // namespace
}  // namespace sluice::train
