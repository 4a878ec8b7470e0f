#include "sluice/plan/prediction.hpp"

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include "memory_model.hpp"
#include "sluice/base/text.hpp"
#include "traffic.hpp"

namespace sluice::plan {

using offload::Tier;

namespace {

// One visit of the computing thread to a unit.
struct Stage {
  std::size_t unit = 0;
  bool backward = false;
  double compute_seconds = 0;
  double drive_seconds = 0;  // of what it fetches and spills
};

// One unit's update, each resource alone.
struct Update {
  double cpu_seconds = 0;
  double drive_seconds = 0;
  double seconds() const { return std::max(cpu_seconds, drive_seconds); }
  // Of the cores, while it goes at its best.
  double cpu_share() const { return seconds() > 0 ? cpu_seconds / seconds() : 0; }
};

double over(double amount, double rate) {
  return amount > 0 && rate > 0 ? amount / rate : 0;
}

// Of an update: what is read and written together, and the rest.
double swap_seconds(const MachineRates& rates, const UnitTraffic& traffic) {
  const std::uint64_t both = std::min(traffic.read_bytes, traffic.written_bytes);
  return over(2.0 * static_cast<double>(both), rates.swap_bytes_per_second) +
         over(static_cast<double>(traffic.read_bytes - both), rates.read_bytes_per_second) +
         over(static_cast<double>(traffic.written_bytes - both), rates.write_bytes_per_second);
}

class Costs {
 public:
  Costs(const Plan& plan, const MachineRates& rates)
      : plan_(plan),
        rates_(rates),
        visits_(visits_traffic(plan)),
        cores_(std::max(1, plan.threads.compute)) {}

  std::vector<Stage> stages() const {
    std::vector<Stage> all;
    const auto steps = step_stages(plan_.layouts);
    const std::size_t last = plan_.layouts.size() - 1;
    for (std::size_t s = 0; s < steps.size(); ++s) {
      Stage stage{.unit = steps[s].front(), .backward = s >= last};
      const UnitTraffic& traffic = visits_[stage.unit];
      // A unit moves its share of a step's bytes at each of its visits; the head has one.
      const double visits = stage.unit == last ? 1 : 2;
      const double copied = static_cast<double>(traffic.h2d_bytes + traffic.d2h_bytes) / visits;
      stage.compute_seconds =
          compute_seconds(stage) + over(copied, rates_.copy_bytes_per_second) / cores_;
      stage.drive_seconds =
          (over(static_cast<double>(traffic.read_bytes), rates_.read_bytes_per_second) +
           over(static_cast<double>(traffic.written_bytes), rates_.write_bytes_per_second)) /
          visits;
      all.push_back(stage);
    }
    return all;
  }

  Update update(std::size_t unit) const {
    const UnitTraffic traffic = update_traffic(plan_, unit);
    const auto count = static_cast<double>(plan_.layouts[unit].flat_count) / plan_.world_size;
    Update update;
    update.cpu_seconds =
        over(count, rates_.update_elements_per_second) +
        over(static_cast<double>(traffic.written_bytes), rates_.checksum_bytes_per_second) /
            cores_ +
        over(static_cast<double>(traffic.h2d_bytes), rates_.copy_bytes_per_second) / cores_;
    update.drive_seconds = swap_seconds(rates_, traffic);
    return update;
  }

 private:
  double compute_seconds(const Stage& stage) const {
    const std::size_t last = plan_.layouts.size() - 1;
    const bool keeps = plan_.units[stage.unit].keep_activations;
    const UnitSeconds& of = stage.unit == 0      ? rates_.embedding
                            : stage.unit == last ? rates_.head
                                                 : rates_.block;
    const auto micro_batches = static_cast<double>(plan_.config.gradient_accumulation_steps);
    const double gradient = over(
        static_cast<double>(plan_.layouts[stage.unit].flat_count * size_of(plan_.compute_dtype)),
        rates_.gradient_bytes_per_second);
    if (stage.unit == last) return micro_batches * of.backward + gradient;
    if (!stage.backward) return micro_batches * (keeps ? of.forward_keeping : of.forward);
    return micro_batches * (of.backward + (keeps ? 0 : of.forward_keeping)) + gradient;
  }

  const Plan& plan_;
  const MachineRates& rates_;
  const std::vector<UnitTraffic> visits_;
  const int cores_;
};

// The computing thread and the updater, side by side. Where the device is the host they share its
// cores: each gets what it asks for up to a half, and what the other leaves.
class Schedule {
 public:
  Schedule(const Plan& plan, const Costs& costs)
      : stages_(costs.stages()),
        waits_for_norm_(plan.config.gradient_clipping > 0),
        overlap_(plan.config.sluice.overlap),
        slots_(plan.gradient_slots > 0 ? static_cast<std::size_t>(plan.gradient_slots)
                                       : std::numeric_limits<std::size_t>::max()),
        current_(plan.units.size(), true) {
    for (std::size_t u = 0; u < plan.units.size(); ++u) updates_.push_back(costs.update(u));
  }

  // When `steps` more steps have been computed, on the clock that began with the first.
  double run(int steps) {
    for (int step = 0; step < steps; ++step) {
      for (const Stage& stage : stages_) visit(stage);
      if (waits_for_norm_) {
        for (std::size_t u = 0; u < current_.size(); ++u) begin_update(u);
      }
      if (!overlap_) drain();
    }
    return now_;
  }

 private:
  void visit(const Stage& stage) {
    while (!current_[stage.unit]) advance(std::numeric_limits<double>::infinity(), 0);
    double left = std::max(stage.compute_seconds, overlap_ ? stage.drive_seconds : 0);
    if (!overlap_) left += stage.drive_seconds;
    const double drive_share = left > 0 ? stage.drive_seconds / left : 0;
    while (left > 0) left -= advance(left, drive_share);
    if (!stage.backward || waits_for_norm_) return;
    while (in_flight() >= slots_) advance(std::numeric_limits<double>::infinity(), 0);
    begin_update(stage.unit);
    if (!overlap_) drain();
  }

  void begin_update(std::size_t unit) {
    current_[unit] = false;
    waiting_.insert(unit);
  }
  std::size_t in_flight() const { return waiting_.size() + (updating_ ? 1 : 0); }
  void drain() {
    while (in_flight() > 0) advance(std::numeric_limits<double>::infinity(), 0);
  }

  // Until the computing thread has done `left` seconds of work or an update ends, whichever is
  // first; an infinite `left`: it waits. Returns the work that it has done.
  double advance(double left, double drive_share) {
    if (!updating_ && !waiting_.empty()) {
      updating_ = *waiting_.begin();
      waiting_.erase(waiting_.begin());
      update_left_ = updates_[*updating_].seconds();
    }
    const bool computes = left != std::numeric_limits<double>::infinity();
    double compute_rate = 1;
    double update_rate = 1;
    if (updating_ && computes) {
      const Update& update = updates_[*updating_];
      const double wants = update.cpu_share();
      const double gets = std::min(wants, 0.5);
      compute_rate = 1 - gets;
      if (wants > 0) update_rate = gets / wants;
      if (update.drive_seconds > 0) update_rate = std::min(update_rate, 1 - drive_share / 2);
    }
    const double compute_end = computes ? left / compute_rate : left;
    const double update_end =
        updating_ ? update_left_ / update_rate : std::numeric_limits<double>::infinity();
    const double seconds = std::min(compute_end, update_end);
    if (seconds == std::numeric_limits<double>::infinity()) return left;  // nothing to wait for
    now_ += seconds;
    if (updating_) {
      update_left_ -= seconds * update_rate;
      if (update_end <= compute_end) {
        current_[*updating_] = true;
        updating_.reset();
      }
    }
    return !computes || compute_end <= update_end ? left : seconds * compute_rate;
  }

  const std::vector<Stage> stages_;
  std::vector<Update> updates_;
  const bool waits_for_norm_;
  const bool overlap_;
  const std::size_t slots_;
  std::vector<bool> current_;  // by unit: its weights are those of the last step
  std::set<std::size_t> waiting_;
  std::optional<std::size_t> updating_;
  double update_left_ = 0;
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
      over(static_cast<double>(plan.h2d_per_step + plan.d2h_per_step), rates.copy_bytes_per_second);
  const std::pair<const char*, double> links[] = {{"compute", prediction.compute_seconds},
                                                  {"update", prediction.update_seconds},
                                                  {"copies", prediction.copy_seconds},
                                                  {"drive", prediction.drive_seconds}};
  prediction.bound_by =
      std::max_element(std::begin(links), std::end(links), [](const auto& a, const auto& b) {
        return a.second < b.second;
      })->first;
  // The first steps have no updates before them.
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
  std::vector<std::vector<std::string>> rows = {{"a step, by what it needs", "alone"},
                                                {"compute", seconds(prediction.compute_seconds)},
                                                {"update", seconds(prediction.update_seconds)},
                                                {"copies", seconds(prediction.copy_seconds)},
                                                {"drive", seconds(prediction.drive_seconds)}};
  char rate[48];
  std::snprintf(rate, sizeof rate, "%.0f tokens/s", prediction.tokens_per_second);
  return format_table(rows) + "predicted: " + seconds(prediction.step_seconds) + " a step, " +
         rate + ", bound by " + prediction.bound_by + " (rates measured " + saved.measured + ")\n";
}

}  // namespace sluice::plan
