#include "sluice/plan/prediction.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "sluice/base/text.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/plan/stages.hpp"
#include "step/home_bytes.hpp"
#include "totals/traffic.hpp"

namespace sluice::plan {

using offload::Tier;

namespace {

// One visit of the computing thread to a unit.
struct Stage {
  std::size_t unit = 0;
  bool backward = false;
  bool last_pass = false;
  std::size_t micro_batches = 1;
  double compute_seconds = 0;
  double copy_seconds = 0;   // between host and device
  double drive_seconds = 0;  // for the bytes that it fetches and spills
};

// Seconds of one unit's update, each resource alone.
struct Update {
  double cpu_seconds = 0;
  double drive_seconds = 0;
  double read_seconds = 0;  // reads alone; drive_seconds has both
  double write_seconds = 0;
  double tiles = 0;  // tiles of its states; 0 when an update reads none
};

double over(double amount, double rate) {
  return amount > 0 && rate > 0 ? amount / rate : 0;
}

// Drive seconds of an update: bytes both read and written at the swap rate, the rest at its own.
double swap_seconds(const MachineRates& rates, const UnitTraffic& traffic) {
  const std::uint64_t both = std::min(traffic.read_bytes, traffic.written_bytes);
  return over(2.0 * static_cast<double>(both), rates.swap_bytes_per_second) +
         over(static_cast<double>(traffic.read_bytes - both), rates.read_bytes_per_second) +
         over(static_cast<double>(traffic.written_bytes - both), rates.write_bytes_per_second);
}

// Seconds of each visit and update, alone.
class Costs {
 public:
  Costs(const Plan& plan, const MachineRates& rates)
      : plan_(plan), rates_(rates), visits_(visits_traffic(plan)) {}

  std::vector<Stage> stages() const {
    std::vector<Stage> all;
    const auto steps = step_stages(plan_.layouts);
    const std::size_t last = plan_.layouts.size() - 1;
    for (std::size_t i = 0; i < plan_.passes() * steps.size(); ++i) {
      const std::size_t s = i % steps.size();
      const bool last_pass = i / steps.size() + 1 == plan_.passes();
      Stage stage{.unit = steps[s].front(), .backward = s >= last, .last_pass = last_pass};
      const UnitTraffic& traffic = visits_[stage.unit];
      // A unit moves its share of a step's bytes at each of its visits; the head has one.
      const double visits = static_cast<double>(plan_.passes()) * (stage.unit == last ? 1 : 2);
      stage.micro_batches = plan_.micro_batches_of(i / steps.size());
      const double copied = static_cast<double>(traffic.h2d_bytes + traffic.d2h_bytes) / visits;
      stage.compute_seconds = compute_seconds(stage);
      stage.copy_seconds = over(copied, rates_.copy_bytes_per_second);
      stage.drive_seconds =
          (over(static_cast<double>(traffic.read_bytes), rates_.read_bytes_per_second) +
           over(static_cast<double>(traffic.written_bytes), rates_.write_bytes_per_second)) /
          visits;
      all.push_back(stage);
    }
    return all;
  }

  // An update whose results were kept sends home the weights alone.
  Update keeping(std::size_t unit) const {
    const UnitTraffic traffic = update_traffic(plan_, unit);
    const double copied = update_sends_weights(plan_.units[unit])
                              ? static_cast<double>(traffic.h2d_bytes)
                              : static_cast<double>(compute_bytes(plan_, unit));
    Update update;
    update.cpu_seconds = over(copied, rates_.copy_bytes_per_second);
    update.write_seconds =
        over(static_cast<double>(traffic.written_bytes), rates_.write_bytes_per_second);
    update.drive_seconds = update.write_seconds;
    return update;
  }

  Update update(std::size_t unit) const {
    const UnitTraffic traffic = update_traffic(plan_, unit);
    const auto count = static_cast<double>(shard_count(plan_, unit));
    Update update;
    const double computing =
        over(count, rates_.update_elements_per_second) +
        over(static_cast<double>(traffic.written_bytes), rates_.checksum_bytes_per_second);
    const double sending =
        over(static_cast<double>(traffic.h2d_bytes), rates_.copy_bytes_per_second);
    const double fetching =
        over(static_cast<double>(traffic.d2h_bytes), rates_.copy_bytes_per_second);
    // A GPU copies in both directions at once, and tiles are computed meanwhile.
    update.cpu_seconds =
        plan_.device.gpu ? std::max({computing, sending, fetching}) : computing + sending;
    update.drive_seconds = swap_seconds(rates_, traffic);
    update.read_seconds =
        over(static_cast<double>(traffic.read_bytes), rates_.read_bytes_per_second);
    update.write_seconds =
        over(static_cast<double>(traffic.written_bytes), rates_.write_bytes_per_second);
    if (update.read_seconds > 0)
      update.tiles = count / static_cast<double>(plan_.rings.update.tile_elements);
    return update;
  }

 private:
  double compute_seconds(const Stage& stage) const {
    const std::size_t last = plan_.layouts.size() - 1;
    const bool saves = plan_.units[stage.unit].activations_saved;
    const UnitRates& of = stage.unit == 0      ? rates_.embedding
                          : stage.unit == last ? rates_.head
                                               : rates_.block;
    const auto all = [&](double UnitSeconds::*pass) {
      return of.first.*pass + static_cast<double>(stage.micro_batches - 1) * of.next.*pass;
    };
    // Micro-batches of the last pass beyond those of every pass are not saved.
    const std::size_t most_saved = saves ? plan_.schedule.passes.each : 0;
    const auto again =
        static_cast<double>(stage.micro_batches - std::min(stage.micro_batches, most_saved));
    const auto gradient_bytes = static_cast<double>(plan_.layouts[stage.unit].flat_count *
                                                    size_of(plan_.config.gradient_dtype()));
    const double gradient =
        stage.last_pass ? over(gradient_bytes, rates_.gradient_bytes_per_second) : 0;
    if (stage.unit == last) return all(&UnitSeconds::backward) + gradient;
    const double with_saving = all(&UnitSeconds::forward_saving);
    const double more = again * of.next.forward_saving;
    if (!stage.backward)
      return saves ? with_saving + again * (of.next.forward - of.next.forward_saving)
                   : all(&UnitSeconds::forward);
    return all(&UnitSeconds::backward) + (saves ? more : with_saving) + gradient;
  }

  const Plan& plan_;
  const MachineRates& rates_;
  const std::vector<UnitTraffic> visits_;
};

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
  const auto links = prediction.links();
  prediction.bound_by =
      std::max_element(links.begin(), links.end(), [](const auto& a, const auto& b) {
        return a.second < b.second;
      })->first;
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
  const auto seconds = [](double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.3f s", value);
    return std::string(text);
  };
  std::vector<std::vector<std::string>> rows = {{"a step, by what it needs", "alone"}};
  for (const auto& [link, alone] : prediction.links()) rows.push_back({link, seconds(alone)});
  char rate[48];
  std::snprintf(rate, sizeof rate, "%.0f tokens/s", prediction.tokens_per_second);
  return format_table(rows) + "predicted: " + seconds(prediction.step_seconds) + " a step, " +
         rate + ", bound by " + prediction.bound_by + " (rates measured " + saved.measured + ")\n";
}

}  // namespace sluice::plan
