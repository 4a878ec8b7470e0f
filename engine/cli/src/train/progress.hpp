#pragma once
// The display of `train` while it runs: the plan and its choices, then one line that is rewritten
// in place on a terminal, or plain lines elsewhere. TrainProgress also records the losses for the
// curve at the end.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "sluice/train/library.hpp"
#include "terminal/ascii_plot.hpp"
#include "terminal/clock.hpp"
#include "terminal/console.hpp"
#include "train/deepspeed_lines.hpp"

namespace sluice::cli {

// The values of one progress line.
struct ProgressView {
  std::int64_t step = 0;
  std::int64_t total = 0;
  double loss = 0;
  double lr = 0;
  double tokens_per_second = 0;
  std::optional<double> seconds_left;
  std::string eta;  // time of day; empty when not known
};

// Exactly one line of at most terminal.columns - 1 characters. On a narrow terminal the least
// important parts are left out first.
std::string progress_line(const ProgressView& view, const TerminalFacts& terminal);

// An exponential average that starts at its first value, without a bias towards zero.
class SmoothedLoss {
 public:
  void add(double loss);
  double value() const { return weight_ > 0 ? sum_ / weight_ : 0; }

 private:
  double sum_ = 0;
  double weight_ = 0;
};

// Confined to thread: the training thread.
class TrainProgress : public train::TrainObserver {
 public:
  TrainProgress(Console& console, ProgressClock clock);

  void on_start(const std::string& work, double done) override;
  void on_plan(const plan::Plan& plan) override;
  void on_choices(const std::vector<std::string>& choices) override;
  void on_begin(std::int64_t first_step, std::int64_t total_steps) override;
  void on_step(const train::StepRecord& record) override;
  void on_eval_progress(std::uint64_t done, std::uint64_t total) override;

  // The plan of the run, once on_plan was called.
  const std::optional<plan::Plan>& plan() const { return plan_; }
  // The chart of the losses; empty before the tenth step.
  std::string loss_curve() const;

 private:
  // The times and tokens of a step, for its speed.
  struct Mark {
    double at_seconds;  // clock
    double step_seconds;
    double eval_seconds;  // of all evaluations until then
    std::uint64_t tokens;
  };
  // A part of the start, and when it began.
  struct StartWork {
    std::string work;
    double at_seconds;
  };
  // Keeps the loss for the chart. From a long run every second step, then every fourth, and so on.
  void keep_for_curve(const train::StepRecord& record);
  std::string steps_line(std::int64_t first_step, std::int64_t total_steps) const;
  std::string start_line() const;
  ProgressView view(const train::StepRecord& record) const;
  bool wants_line(const train::StepRecord& record) const;
  // The breakdowns that the configuration asks for.
  void print_breakdowns(const train::StepRecord& record);
  void print_profile(const train::StepRecord& record);
  std::string plain_line(const train::StepRecord& record) const;

  Console& console_;
  const ProgressClock clock_;
  std::optional<plan::Plan> plan_;
  std::vector<StartWork> start_;
  std::int64_t first_step_ = 1;
  std::int64_t total_steps_ = 0;
  std::int64_t steps_per_print_ = 0;  // 0: not asked for
  double printed_at_seconds_ = 0;
  double drawn_at_seconds_ = 0;
  SmoothedLoss loss_;
  Throughput throughput_;
  std::deque<Mark> recent_;
  std::vector<PlotPoint> train_losses_;  // of steps that curve_stride_ divides
  std::int64_t curve_stride_ = 1;
  std::vector<PlotPoint> eval_losses_;
  std::optional<double> eval_began_at_seconds_;  // empty: none is in progress
  double eval_seconds_ = 0;                      // of all that have ended
  std::string last_status_;
};

}  // namespace sluice::cli
