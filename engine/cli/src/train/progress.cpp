#include "train/progress.hpp"

#include <algorithm>
#include <cmath>

#include "files/output_file.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/file/proc.hpp"
#include "sluice/base/text.hpp"
#include "sluice/plan/plan_text.hpp"
#include "terminal/byte_progress.hpp"
#include "terminal/text_format.hpp"
#include "train/flops_profile.hpp"

namespace sluice::cli {

namespace {

// Steps that the shown speed averages over: a run slows down and recovers with its machine.
constexpr std::size_t kRecentSteps = 32;
// A memory of about twenty steps, which follows the loss and not the batches.
constexpr double kSmoothing = 0.95;
constexpr double kSecondsBetweenLines = 10;
constexpr double kSecondsBetweenRedraws = 0.1;
constexpr std::size_t kStepsForCurve = 10;
constexpr std::size_t kMostCurvePoints = 4096;  // dozens for each column of a chart
// A start that takes longer says where its seconds went.
constexpr double kLongStartSeconds = 5;

// --steps counts from the beginning of the run, which is easily forgotten when one is resumed.
std::string nothing_left(std::int64_t done, std::int64_t total) {
  return "nothing is left to train: step " + std::to_string(done) +
         " of the run is committed, and its steps are " + std::to_string(total) +
         " in all, counted from its beginning; to go on, give more --steps or --epochs";
}

}  // namespace

std::string progress_line(const ProgressView& view, const TerminalFacts& terminal) {
  constexpr int kShortestBar = 8;
  constexpr int kLongestBar = 30;
  constexpr int kBarExtra = 2 + 2;  // the bar's ends, and the gap before the next part
  const auto columns =
      static_cast<int>(terminal.columns) - 1;  // the last column would wrap on some terminals
  const std::string total = std::to_string(view.total);
  std::string step = std::to_string(view.step);
  step.insert(0, total.size() - std::min(total.size(), step.size()),
              ' ');  // so that the line does not jump
  std::string left;
  if (view.seconds_left) left = format_duration(*view.seconds_left) + " left";
  // On a narrow terminal the last parts are left out first.
  std::vector<std::string> parts = {"step " + step + "/" + total,
                                    "loss " + format_number("%.4f", view.loss),
                                    left,
                                    format_rate(view.tokens_per_second, "tok/s"),
                                    "lr " + format_number("%.2e", view.lr),
                                    view.eta.empty() ? "" : "done at " + view.eta};
  const auto width = [&] {
    int sum = 0;
    for (const std::string& part : parts)
      sum += part.empty() ? 0 : static_cast<int>(part.size()) + 2;
    return sum - 2;
  };
  while (parts.size() > 2 && width() + kBarExtra + kShortestBar > columns) parts.pop_back();
  const int room = std::min(columns - width() - kBarExtra, kLongestBar);
  const double share =
      view.total > 0 ? static_cast<double>(view.step) / static_cast<double>(view.total) : 0;
  // The shown order differs: lr and speed come before the times.
  std::vector<std::string> shown = {parts[0]};
  if (room >= kShortestBar) shown.push_back(progress_bar(share, room, terminal.unicode));
  for (const std::size_t index : {1U, 4U, 3U, 2U, 5U}) {
    if (index < parts.size() && !parts[index].empty()) shown.push_back(parts[index]);
  }
  std::string line = join(shown, "  ");
  if (display_width(line) > static_cast<std::size_t>(columns)) line = parts[0];
  return line;
}

void SmoothedLoss::add(double loss) {
  if (!std::isfinite(loss)) return;
  sum_ = kSmoothing * sum_ + loss;
  weight_ = kSmoothing * weight_ + 1;
}

TrainProgress::TrainProgress(Console& console, ProgressClock clock)
    : console_(console), clock_(std::move(clock)) {}

void TrainProgress::on_start(const std::string& work, double done) {
  if (start_.empty() || start_.back().work != work) start_.push_back({work, clock_.seconds()});
  const std::string percent = done > 0 ? ", " + format_number("%.0f", 100 * done) + " %" : "";
  console_.status("starting: " + work + percent);
}

// Where the seconds of a long start went; empty for a short one.
std::string TrainProgress::start_line() const {
  const double now = clock_.seconds();
  if (start_.empty() || now - start_.front().at_seconds < kLongStartSeconds) return "";
  std::string parts;
  for (std::size_t i = 0; i < start_.size(); ++i) {
    const double end = i + 1 < start_.size() ? start_[i + 1].at_seconds : now;
    parts += (i > 0 ? ", " : "") + start_[i].work + " " +
             format_number("%.1f", end - start_[i].at_seconds) + " s";
  }
  return "started in " + format_number("%.1f", now - start_.front().at_seconds) + " s: " + parts;
}

void TrainProgress::on_plan(const plan::Plan& plan) {
  plan_ = plan;
  steps_per_print_ = plan.config.monitors.steps_per_print.value_or(0);
  for (const std::string& note : plan.config.notes) console_.print(note);
  console_.print(plan::plan_table(plan));
  for (const std::string& choice : plan.choices) console_.print("chosen: " + choice);
}

void TrainProgress::on_choices(const std::vector<std::string>& choices) {
  for (const std::string& choice : choices) console_.print("chosen: " + choice);
}

// With what the steps write to the drive: users choose how many they train.
std::string TrainProgress::steps_line(std::int64_t first_step, std::int64_t total_steps) const {
  std::string steps =
      "training: steps " + std::to_string(first_step) + " to " + std::to_string(total_steps);
  if (!plan_ || plan_->traffic.nvme_written_bytes == 0) return steps;
  const auto count = static_cast<std::uint64_t>(total_steps - first_step + 1);
  const auto every = static_cast<std::uint64_t>(plan_->config.sluice.commit_every);
  const plan::StepTraffic& traffic = plan_->traffic;
  const auto last = static_cast<std::uint64_t>(total_steps);
  // Every so many steps, and the last one.
  const std::uint64_t commits = (last + every - 1) / every - (last - count) / every;
  const std::uint64_t written =
      checked_mul(commits, traffic.nvme_written_bytes) +
      checked_mul(count - commits, traffic.nvme_written_between_commits_bytes);
  const bool is_one = plan_->config.world_size == 1;
  return steps + "; they write " + format_bytes(written) + " to the drive" +
         (is_one ? "" : " for this rank");
}

void TrainProgress::on_begin(std::int64_t first_step, std::int64_t total_steps) {
  first_step_ = first_step;
  total_steps_ = total_steps;
  printed_at_seconds_ = clock_.seconds();
  if (const std::string line = start_line(); !line.empty()) console_.print(line);
  console_.print(first_step > total_steps
                     ? (total_steps == 0 ? "evaluating, without training"
                                         : nothing_left(first_step - 1, total_steps))
                     : "\n" + steps_line(first_step, total_steps));
  if (first_step <= total_steps)
    console_.status("step " + std::to_string(first_step) + " is running");
}

void TrainProgress::on_step(const train::StepRecord& record) {
  loss_.add(record.loss);
  keep_for_curve(record);
  const double now = clock_.seconds();
  if (eval_began_at_seconds_) eval_seconds_ += now - *eval_began_at_seconds_;
  eval_began_at_seconds_.reset();
  recent_.push_back({now, record.seconds, eval_seconds_, record.tokens});
  if (recent_.size() > kRecentSteps) recent_.pop_front();
  if (record.skipped) {
    console_.print("step " + std::to_string(record.step) + ": update skipped");
  }
  if (wants_line(record)) {
    console_.print(plain_line(record));
    printed_at_seconds_ = now;
  }
  print_breakdowns(record);
  if (record.eval_loss) {
    eval_losses_.push_back({static_cast<double>(record.step), *record.eval_loss});
    console_.print("step " + std::to_string(record.step) + "/" + std::to_string(total_steps_) +
                   "  eval loss " + format_number("%.4f", *record.eval_loss) + "  (training loss " +
                   format_number("%.4f", loss_.value()) + ", smoothed)");
  }
  if (now - drawn_at_seconds_ >= kSecondsBetweenRedraws || record.step == total_steps_) {
    last_status_ = progress_line(view(record), console_.terminal_now());
    console_.status(record.step == total_steps_ ? "" : last_status_);
    drawn_at_seconds_ = now;
  }
}

void TrainProgress::keep_for_curve(const train::StepRecord& record) {
  if (record.step % curve_stride_ != 0) return;
  train_losses_.push_back({static_cast<double>(record.step), record.loss});
  if (train_losses_.size() < kMostCurvePoints) return;
  curve_stride_ *= 2;
  std::erase_if(train_losses_, [&](const PlotPoint& point) {
    return static_cast<std::int64_t>(point.x) % curve_stride_ != 0;
  });
}

void TrainProgress::print_breakdowns(const train::StepRecord& record) {
  if (!plan_) return;
  const config::TrainConfig& config = plan_->config;
  throughput_.add(record, config.train_batch_size, config.gradient_accumulation_steps);
  const bool prints = steps_per_print_ > 0 && record.step % steps_per_print_ == 0;
  if (prints && config.monitors.throughput) console_.print(throughput_.line());
  if (config.monitors.wall_clock_breakdown) console_.print(times_line(record));
  print_profile(record);
  if (config.monitors.memory_breakdown) {
    console_.print(memory_lines(record, proc_bytes("/proc/meminfo", {"MemTotal"}).value_or(0),
                                proc_bytes("/proc/meminfo", {"MemAvailable"}).value_or(0)));
  }
}

void TrainProgress::print_profile(const train::StepRecord& record) {
  const config::FlopsProfilerConfig& profiler = plan_->config.monitors.flops_profiler;
  if (!profiler.enabled || record.step != profiler.profile_step + 1) return;
  const std::string profile = flops_profile(*plan_, record);
  if (profiler.output_file.empty()) return console_.print(profile);
  try {
    write_file(profiler.output_file, profile);
  } catch (const IoError& error) {  // no reason to end a run
    console_.log(LogLevel::error, "flops_profiler: " + std::string(error.what()));
  }
}

void TrainProgress::on_eval_progress(std::uint64_t done, std::uint64_t total) {
  const double now = clock_.seconds();
  if (!eval_began_at_seconds_) eval_began_at_seconds_ = now;
  const std::string line =
      "evaluating: window " + std::to_string(done) + " of " + std::to_string(total);
  if (!console_.terminal().is_terminal && now - printed_at_seconds_ >= kSecondsBetweenLines) {
    console_.print(line);
    printed_at_seconds_ = now;
  }
  if (now - drawn_at_seconds_ < kSecondsBetweenRedraws && done < total) return;
  drawn_at_seconds_ = now;
  console_.status(done < total ? line : last_status_);
}

ProgressView TrainProgress::view(const train::StepRecord& record) const {
  ProgressView view;
  view.step = record.step;
  view.total = total_steps_;
  view.loss = loss_.value();
  view.lr = record.lr;
  double step_seconds = 0;
  std::uint64_t tokens = 0;
  for (const Mark& mark : recent_) {
    step_seconds += mark.step_seconds;
    tokens += mark.tokens;
  }
  view.tokens_per_second = step_seconds > 0 ? static_cast<double>(tokens) / step_seconds : 0;
  if (recent_.size() >= 2) {
    // Measured by the clock, so that all counts that is beside the steps. Evaluations are rare, and
    // spread over all steps so far.
    const Mark& first = recent_.front();
    const Mark& last = recent_.back();
    const double between =
        last.at_seconds - first.at_seconds - (last.eval_seconds - first.eval_seconds);
    const double each = between / static_cast<double>(recent_.size() - 1) +
                        eval_seconds_ / static_cast<double>(record.step - first_step_ + 1);
    view.seconds_left = each * static_cast<double>(total_steps_ - record.step);
    view.eta = clock_.time_of_day(*view.seconds_left);
  }
  return view;
}

bool TrainProgress::wants_line(const train::StepRecord& record) const {
  if (steps_per_print_ > 0 && record.step % steps_per_print_ == 0) return true;
  if (console_.terminal().is_terminal) return false;
  if (record.step == first_step_ || record.step == total_steps_) return true;
  return steps_per_print_ == 0 && clock_.seconds() - printed_at_seconds_ >= kSecondsBetweenLines;
}

std::string TrainProgress::plain_line(const train::StepRecord& record) const {
  const ProgressView now = view(record);
  std::vector<std::string> parts = {
      "step " + std::to_string(record.step) + "/" + std::to_string(total_steps_),
      "loss " + format_number("%.4f", record.loss), "lr " + format_number("%.3e", record.lr),
      "grad norm " + format_number("%.3f", record.grad_norm),
      format_rate(now.tokens_per_second, "tok/s")};
  if (record.loss_scale)
    parts.push_back("loss scale " + format_number("%.10g", *record.loss_scale));
  if (now.seconds_left && record.step < total_steps_) {
    parts.push_back(format_duration(*now.seconds_left) + " left");
  }
  return join(parts, "  ");
}

std::string TrainProgress::loss_curve() const {
  if (train_losses_.size() < kStepsForCurve) return "";
  PlotOptions options;
  options.columns = std::min(console_.terminal().columns, 100);
  options.unicode = console_.terminal().unicode;
  options.x_label = "step";
  return plot({{"training loss", PlotSeries::Style::line, train_losses_},
               {"evaluation loss", PlotSeries::Style::marks, eval_losses_}},
              options);
}

}  // namespace sluice::cli
