#include "train/progress.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>

#include "sluice/base/text.hpp"
#include "sluice/plan/plan_text.hpp"

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ProgressView half_way() {
  ProgressView view;
  view.step = 60;
  view.total = 120;
  view.loss = 2.4312;
  view.lr = 3.9e-4;
  view.tokens_per_second = 1043;
  view.seconds_left = 462;
  view.eta = "14:32";
  return view;
}

TEST(ProgressLine, ShowsEverythingWhereThereIsRoom) {
  EXPECT_EQ(progress_line(half_way(), {true, 120, false}),
            "step  60/120  [###############...............]  loss 2.4312  lr 3.90e-04  1,043 tok/s "
            " 7m42s left  done "
            "at 14:32");
}

TEST(ProgressLine, FillsTheBarByEighthsOfACharacter) {
  ProgressView view = half_way();
  view.step = 1;
  view.total = 240;  // an eighth of a character, at thirty characters
  EXPECT_THAT(progress_line(view, {true, 160, true}), HasSubstr("▕▏" + std::string(29, ' ') + "▏"));
}

TEST(ProgressLine, FitsEveryWidthAndAlwaysHasTheStep) {
  for (const bool unicode : {false, true}) {
    for (int columns = 20; columns <= 160; ++columns) {
      const std::string line = progress_line(half_way(), {true, columns, unicode});
      EXPECT_LT(display_width(line), static_cast<std::size_t>(columns)) << line;
      EXPECT_THAT(line, HasSubstr("60/120"));
    }
  }
}

TEST(ProgressLine, KeepsItsLengthFromTheFirstStepToTheLast) {
  ProgressView view = half_way();
  const std::string middle = progress_line(view, {true, 100, true});
  view.step = 1;
  EXPECT_EQ(display_width(progress_line(view, {true, 100, true})), display_width(middle));
  view.step = 120;
  EXPECT_EQ(display_width(progress_line(view, {true, 100, true})), display_width(middle));
}

TEST(SmoothedLoss, StartsAtTheFirstValue) {
  SmoothedLoss loss;
  loss.add(5);
  EXPECT_DOUBLE_EQ(loss.value(), 5);
  loss.add(3);
  EXPECT_GT(loss.value(), 3);
  EXPECT_LT(loss.value(), 4);  // 3.97: both count almost the same
}

TEST(SmoothedLoss, LeavesOutWhatIsNotFinite) {
  SmoothedLoss loss;
  loss.add(5);
  loss.add(std::numeric_limits<double>::quiet_NaN());
  EXPECT_DOUBLE_EQ(loss.value(), 5);
}

// A TrainProgress over memory, with a clock that the test moves.
class Progress : public ::testing::Test {
 protected:
  ~Progress() override {
    console_.reset();  // writes to the stream
    std::fclose(stream_);
    std::free(text_);
  }
  TrainProgress make(TerminalFacts facts) {
    console_.emplace(stream_, stream_, facts);
    return TrainProgress(*console_,
                         {[this] { return now_; }, [](double) { return std::string("12:00"); }});
  }
  std::string output() {
    std::fflush(stream_);
    return {text_, size_};
  }
  train::StepRecord step(std::int64_t number, double loss = 2.0) {
    now_ += 1;
    train::StepRecord record;
    record.step = number;
    record.loss = loss;
    record.lr = 1e-3;
    record.grad_norm = 0.5;
    record.tokens = 100;
    record.seconds = 1;
    return record;
  }

  double now_ = 1000;
  char* text_ = nullptr;
  std::size_t size_ = 0;
  std::FILE* stream_ = ::open_memstream(&text_, &size_);
  std::optional<Console> console_;
};

TEST_F(Progress, PrintsFirstAndLastAndALineEachTenSecondsOutsideATerminal) {
  TrainProgress progress = make({});
  progress.on_begin(1, 24);
  for (std::int64_t i = 1; i <= 24; ++i) progress.on_step(step(i));
  const std::string text = output();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2 + 4)
      << text;  // heading; steps 1, 11, 21, 24
  EXPECT_THAT(text,
              HasSubstr("step 1/24  loss 2.0000  lr 1.000e-03  grad norm 0.500  100 tok/s\n"));
  EXPECT_THAT(text, HasSubstr("step 11/24"));
  EXPECT_THAT(text, HasSubstr("13s left"));
  EXPECT_THAT(text, HasSubstr("step 24/24"));
}

// 100 steps of a second, and an evaluation of 50 s each 20.
TEST_F(Progress, SpreadsEvaluationsOverTheStepsThatAreLeft) {
  TrainProgress progress = make({});
  progress.on_begin(1, 100);
  for (std::int64_t i = 1; i <= 45; ++i) {
    train::StepRecord record = step(i);
    if (i % 20 == 0) {
      for (std::uint64_t window = 0; window <= 50; ++window) {
        progress.on_eval_progress(window, 50);
        if (window < 50) now_ += 1;
      }
      record.eval_loss = 2.0;
    }
    progress.on_step(record);
  }
  const std::string text = output();
  EXPECT_THAT(text, HasSubstr("evaluating: window 21 of 50\n"));
  // Steps that are left times a second and the mean of evaluations: 79 * (1 + 50 / 21), and
  // 59 * (1 + 100 / 41).
  EXPECT_THAT(text, HasSubstr("step 21/100  loss 2.0000  lr 1.000e-03  grad norm 0.500  "
                              "100 tok/s  4m27s left"));
  EXPECT_THAT(text, HasSubstr("step 41/100  loss 2.0000  lr 1.000e-03  grad norm 0.500  "
                              "100 tok/s  3m23s left"));
}

TEST_F(Progress, PrintsEveryStepsPerPrintStepsWhenTheConfigurationSaysSo) {
  TrainProgress progress = make({});
  plan::Plan plan;
  plan.config.monitors.steps_per_print = 5;
  progress.on_plan(plan);
  progress.on_begin(1, 12);
  for (std::int64_t i = 1; i <= 12; ++i) progress.on_step(step(i));
  const std::string text = output();
  for (const char* shown : {"step 1/12", "step 5/12", "step 10/12", "step 12/12"})
    EXPECT_THAT(text, HasSubstr(shown));
  EXPECT_THAT(text, Not(HasSubstr("step 11/12")));
}

TEST_F(Progress, SaysWhatTheStartDoesAndWhereItsSecondsWent) {
  TrainProgress progress = make({true, 80, false});
  progress.on_start("planning", 0);
  now_ += 1.25;
  progress.on_start("initial weights", 0);
  now_ += 2;
  progress.on_start("initial weights", 0.5);
  EXPECT_THAT(output(), HasSubstr("starting: initial weights, 50 %"));
  now_ += 2;
  progress.on_begin(1, 10);
  EXPECT_THAT(output(), HasSubstr("started in 5.2 s: planning 1.2 s, initial weights 4.0 s\n"));
}

TEST_F(Progress, DoesNotMentionAShortStart) {
  TrainProgress progress = make({});
  progress.on_start("planning", 0);
  now_ += 4;
  progress.on_begin(1, 10);
  EXPECT_THAT(output(), Not(HasSubstr("start")));
}

TEST_F(Progress, RewritesOneLineOnATerminal) {
  TrainProgress progress = make({true, 80, false});
  progress.on_begin(1, 10);
  for (std::int64_t i = 1; i <= 9; ++i) progress.on_step(step(i));
  const std::string text = output();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << "only the heading stays";
  EXPECT_THAT(text, HasSubstr("\r\x1b[Kstep  9/10"));
}

TEST_F(Progress, KeepsEvaluationsAndSkippedStepsInBothKinds) {
  for (const bool is_terminal : {false, true}) {
    TrainProgress progress = make({is_terminal, 80, false});
    progress.on_begin(1, 4);
    train::StepRecord evaluated = step(2);
    evaluated.eval_loss = 1.75;
    progress.on_step(evaluated);
    train::StepRecord skipped = step(3);
    skipped.skipped = true;
    progress.on_step(skipped);
    EXPECT_THAT(output(),
                HasSubstr("step 2/4  eval loss 1.7500  (training loss 2.0000, smoothed)\n"));
    EXPECT_THAT(output(), HasSubstr("step 3: update skipped\n"));
  }
}

TEST_F(Progress, ShowsTheLossScaleWhereThereIsOne) {
  TrainProgress progress = make({});
  progress.on_begin(1, 2);
  progress.on_step(step(1));
  EXPECT_THAT(output(), Not(HasSubstr("loss scale")));
  train::StepRecord scaled = step(2);
  scaled.loss_scale = 65536;
  progress.on_step(scaled);
  EXPECT_THAT(output(), HasSubstr("loss scale 65536"));
}

TEST_F(Progress, SaysSoWhenNothingIsLeftToDo) {
  TrainProgress progress = make({});
  progress.on_begin(11, 6);
  EXPECT_THAT(output(),
              HasSubstr("nothing is left to train: step 10 of the run is committed, and its steps "
                        "are 6 in all, counted from its beginning; to go on, give more --steps or "
                        "--epochs"));
}

TEST_F(Progress, DrawsTheCurveFromTenStepsOn) {
  TrainProgress progress = make({});
  progress.on_begin(1, 20);
  for (std::int64_t i = 1; i <= 9; ++i) progress.on_step(step(i, 10.0 / static_cast<double>(i)));
  EXPECT_EQ(progress.loss_curve(), "");
  train::StepRecord tenth = step(10, 1.0);
  tenth.eval_loss = 1.5;
  progress.on_step(tenth);
  EXPECT_THAT(progress.loss_curve(), HasSubstr("training loss   o evaluation loss"));
}

TEST_F(Progress, DrawsTheWholeCurveOfALongRun) {
  const auto curve_of = [&](std::int64_t steps) {
    TrainProgress progress = make({});
    progress.on_begin(1, steps);
    for (std::int64_t i = 1; i <= steps; ++i)
      progress.on_step(step(i, static_cast<double>(i) / static_cast<double>(steps)));
    return progress.loss_curve();
  };
  const std::string curve = curve_of(20'000);
  EXPECT_THAT(curve, HasSubstr("20000"));
  // But for its labels the line is that of a run whose every step is kept.
  const auto line_of = [](std::string text) {
    std::erase_if(text, [](char c) { return c != '.' && c != '\n'; });
    return text;
  };
  EXPECT_EQ(line_of(curve), line_of(curve_of(2'000)));
}

TEST_F(Progress, ShowsNotesTableAndChoicesOfThePlanFirst) {
  TrainProgress progress = make({});
  plan::Plan plan;
  plan.config.notes = {"mapped: KEY: what it means"};
  plan.choices = {"2 threads"};
  progress.on_plan(plan);
  const std::string text = output();
  EXPECT_THAT(text, HasSubstr("mapped: KEY: what it means\n" + plan::plan_table(plan)));
  EXPECT_THAT(text, HasSubstr("chosen: 2 threads\n"));
}

}  // namespace
}  // namespace sluice::cli
