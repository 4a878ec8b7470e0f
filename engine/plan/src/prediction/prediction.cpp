#include "sluice/plan/prediction.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "prediction/step_costs.hpp"
#include "sluice/base/text.hpp"
#include "sluice/plan/plan.hpp"
#include "step/step_seconds.hpp"

namespace sluice::plan {

namespace {

// The computing thread and the updater, side by side. On the host device they share the cores: each
// gets what it asks for, up to a half, and whatever the other leaves. Work on one core delays all
// of LibTorch's threads: they split their work evenly and wait for the slowest.
class Schedule {
 public:
  Schedule(const Plan& plan, const Costs& costs)
      : stages_(costs.stages()),
        waits_for_norm_(plan.config.updates_need_all_gradients()),
        overlap_(plan.config.sluice.overlap),
        shares_cores_(!plan.device.gpu),
        slots_(plan.rings.gradient_slots > 0 ? static_cast<std::size_t>(plan.rings.gradient_slots)
                                             : kNoLimit),
        free_tiles_(plan.rings.update.read_ahead_tiles),
        ahead_(plan.units.size(), 0) {
    for (std::size_t u = 0; u < plan.units.size(); ++u) {
      updates_.push_back(costs.update(u));
      keeping_.push_back(costs.keeping(u));
      speculates_.push_back(plan.units[u].second_states);
    }
  }

  // Computes `steps` more steps. Returns the seconds since the first step began.
  double run(int steps) {
    for (int step = 0; step < steps; ++step) {
      expect_updates();
      for (const Stage& stage : stages_) visit(stage);
      for (std::size_t u = 0; u < updates_.size() && waits_for_norm_; ++u) end_wait_for_norm(u);
      if (!overlap_) drain();
    }
    return now_;
  }

 private:
  static constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();
  static constexpr double kRounding = 1e-9;
  static constexpr double kForever = std::numeric_limits<double>::infinity();

  // The updater's kinds of work. States that were read ahead are written after their update, when
  // the weights are current already.
  enum class Kind { read_ahead, update, write };
  struct Job {
    Kind kind = Kind::update;
    std::size_t unit = 0;
    double seconds = 0;    // of the whole job, undisturbed
    double cpu_share = 0;  // of the cores, undisturbed
    bool uses_drive = false;
  };

  void visit(const Stage& stage) {
    const bool first_backward = stage.unit + 1 == updates_.size();
    if (first_backward) drain();  // the previous step ends here
    while (left_.count(stage.unit) > 0) advance(kForever, 0);
    // Copies of a GPU take no computing power from it.
    const bool at_once = overlap_ && !shares_cores_;
    double left = at_once ? std::max(stage.compute_seconds, stage.copy_seconds)
                          : stage.compute_seconds + stage.copy_seconds;
    left = overlap_ ? std::max(left, stage.drive_seconds) : left + stage.drive_seconds;
    const double drive_share = left > 0 ? stage.drive_seconds / left : 0;
    while (left > 0) left -= advance(left, drive_share);
    if (!stage.backward || !stage.last_pass) return;
    if (waits_for_norm_ && !speculates_[stage.unit]) return;
    while (left_.size() >= slots_) advance(kForever, 0);
    begin_update(stage.unit);
    if (!overlap_) drain();
  }

  void begin_update(std::size_t unit) {
    left_[unit] = 1;
    expected_.erase(std::remove(expected_.begin(), expected_.end(), unit), expected_.end());
  }
  // The norm is known. It is predicted to clip nothing, so results that are there are kept.
  void end_wait_for_norm(std::size_t unit) {
    if (!speculates_[unit]) return begin_update(unit);
    if (left_.count(unit) > 0) return;  // sends its weights when it ends
    left_[unit] = 1;
    kept_.insert(unit);
  }
  const Update& work_of(std::size_t unit) const {
    return kept_.count(unit) > 0 ? keeping_[unit] : updates_[unit];
  }
  void drain() {
    while (!left_.empty() || unwritten_seconds_ > 0) advance(kForever, 0);
  }
  void expect_updates() {
    expected_.clear();
    for (std::size_t u = 0; u < updates_.size(); ++u) {
      if (updates_[u].tiles > 0) expected_.push_back(u);
    }
  }

  // The share of a unit's states that read-ahead can still take now.
  double can_be_ahead(std::size_t unit) const {
    return std::min(free_tiles_ / updates_[unit].tiles, 1 - ahead_[unit]);
  }

  // The updater takes the waiting update earliest in forward order. Without one, it writes states
  // that were read ahead. When idle, it reads the earliest units' states ahead.
  std::optional<Job> next_job() const {
    if (!left_.empty()) {
      const std::size_t unit = left_.begin()->first;
      const Update& update = work_of(unit);
      const double drive = (1 - ahead_[unit]) * update.drive_seconds;
      const double seconds = std::max(update.cpu_seconds, drive);
      const double cpu_share = seconds > 0 ? update.cpu_seconds / seconds : 0;
      return Job{Kind::update, unit, seconds, cpu_share, drive > 0};
    }
    if (unwritten_seconds_ > 0) return Job{Kind::write, 0, unwritten_seconds_, 0, true};
    if (free_tiles_ <= kRounding) return std::nullopt;
    for (const std::size_t unit : expected_) {
      if (can_be_ahead(unit) > kRounding)
        return Job{Kind::read_ahead, unit, updates_[unit].read_seconds, 0, true};
    }
    return std::nullopt;
  }

  double seconds_left(const Job& job) const {
    switch (job.kind) {
      case Kind::read_ahead:
        return can_be_ahead(job.unit) * job.seconds;
      case Kind::update:
        return left_.at(job.unit) * job.seconds;
      case Kind::write:
        return job.seconds;
    }
    return 0;
  }

  // Advances a job. `ends`: the job is complete, whatever rounding says.
  void progress(const Job& job, double seconds, bool ends) {
    double share = job.seconds > 0 ? seconds / job.seconds : 0;
    double& ahead = ahead_[job.unit];
    switch (job.kind) {
      case Kind::read_ahead:
        if (ends) share = can_be_ahead(job.unit);
        ahead += share;
        free_tiles_ -= share * updates_[job.unit].tiles;
        break;
      case Kind::update:
        left_[job.unit] -= share;
        if (!ends) break;
        left_.erase(job.unit);
        kept_.erase(job.unit);
        unwritten_seconds_ += ahead * updates_[job.unit].write_seconds;
        free_tiles_ += ahead * updates_[job.unit].tiles;
        ahead = 0;
        break;
      case Kind::write:
        unwritten_seconds_ = ends ? 0 : unwritten_seconds_ - seconds;
        break;
    }
  }

  // Advances the clock until the computing thread has done `left` seconds of work, or the updater's
  // job ends, whichever is first. With an infinite `left` the thread waits. Returns the seconds of
  // work that the thread has done.
  double advance(double left, double drive_share) {
    const std::optional<Job> job = next_job();
    const bool computes = left != kForever;
    double compute_rate = 1;
    double job_rate = 1;
    if (job && computes) {
      const double gets = shares_cores_ ? std::min(job->cpu_share, 0.5) : job->cpu_share;
      if (shares_cores_) compute_rate = 1 - gets;
      if (job->cpu_share > 0) job_rate = gets / job->cpu_share;
      if (job->uses_drive) job_rate = std::min(job_rate, 1 - drive_share / 2);
    }
    const double compute_end = computes ? left / compute_rate : kForever;
    const double job_end = job ? seconds_left(*job) / job_rate : kForever;
    const double seconds = std::min(compute_end, job_end);
    if (seconds == kForever) return left;  // nothing to wait for
    now_ += seconds;
    if (job) progress(*job, seconds * job_rate, job_end <= compute_end);
    return !computes || compute_end <= job_end ? left : seconds * compute_rate;
  }

  const std::vector<Stage> stages_;
  std::vector<Update> updates_;
  std::vector<Update> keeping_;   // by unit, as updates_
  std::vector<bool> speculates_;  // by unit: its update begins before the norm is known
  std::set<std::size_t> kept_;    // units with results that are being kept
  const bool waits_for_norm_;
  const bool overlap_;
  const bool shares_cores_;
  const std::size_t slots_;
  std::map<std::size_t, double> left_;  // by unit with a begun update: its remaining share
  std::deque<std::size_t> expected_;
  double free_tiles_;          // read-ahead tiles that are free
  std::vector<double> ahead_;  // by unit: the share of its states that is read ahead
  double unwritten_seconds_ = 0;
  double now_ = 0;
};

}  // namespace

Prediction predict(const Plan& plan, const MachineRates& rates) {
  const Costs costs(plan, rates);
  Prediction prediction;
  for (const Stage& stage : costs.stages()) {
    prediction.compute_seconds += stage.compute_seconds;
    prediction.drive_seconds += stage.drive_seconds;
  }
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const Update update = costs.update(u);
    prediction.update_seconds += update.cpu_seconds;
    prediction.drive_seconds += update.drive_seconds;
  }
  prediction.copy_seconds =
      over(static_cast<double>(plan.traffic.h2d_bytes + plan.traffic.d2h_bytes),
           rates.copy_bytes_per_second);
  prediction.bound_by = longest(prediction.links());
  // The first steps have no updates of earlier steps to wait for.
  constexpr int kWarm = 2;
  constexpr int kCounted = 2;
  Schedule schedule(plan, costs);
  const double warm = schedule.run(kWarm);
  prediction.step_seconds = (schedule.run(kCounted) - warm) / kCounted;
  prediction.tokens_per_second = over(static_cast<double>(plan.config.train_batch_size) *
                                          static_cast<double>(plan.model.n_positions),
                                      prediction.step_seconds);
  return prediction;
}

std::string prediction_text(const Prediction& prediction, const SavedRates& saved) {
  const auto seconds = [](double value) { return format_number("%.3f s", value); };
  std::vector<std::vector<std::string>> rows = {{"link", "seconds, if it worked alone"}};
  for (const auto& [link, alone] : prediction.links()) rows.push_back({link, seconds(alone)});
  const double tokens = prediction.tokens_per_second;
  return format_table(rows) + "predicted: " + seconds(prediction.step_seconds) + " a step, " +
         format_number(tokens < 100 ? "%.1f" : "%.0f", tokens) + " tokens/s, bound by " +
         prediction.bound_by + " (rates measured " + saved.measured + ")\n";
}

}  // namespace sluice::plan
