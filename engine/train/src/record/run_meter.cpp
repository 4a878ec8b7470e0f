#include "record/run_meter.hpp"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "measure/median.hpp"
#include "record/links.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/log.hpp"
#include "sluice/nvme/drive_rates.hpp"

namespace sluice::train {

using offload::Tier;

namespace {

// Calls over the ranks so far; none with one rank.
void count_network(const RunResources& resources, LinkBytes& bytes, LinkSeconds& busy) {
  if (resources.plan.config.world_size == 1) return;
  for (const zero::Communicator* ranks :
       {resources.communicator.get(), resources.gather_communicator.get()}) {
    const zero::CommunicatorCounters counters = ranks->counters();
    bytes.network += counters.sent_bytes();
    for (const zero::CallCounts& calls : counters.calls) busy.network += calls.seconds;
  }
}

// Zero without steps.
double median_of(const LastValues<LinkSeconds>& last, double LinkSeconds::*link) {
  const std::vector<LinkSeconds>& steps = last.values();
  if (steps.empty()) return 0;
  std::vector<double> values;
  values.reserve(steps.size());
  for (const LinkSeconds& step : steps) values.push_back(step.*link);
  return median(std::move(values));
}

}  // namespace

RunMeter::RunMeter(RunResources& resources, const StepRunner& runner)
    : resources_(resources), runner_(runner) {}

RunMeter::Totals RunMeter::totals() const {
  Totals now;
  now.update = resources_.updater->counters();
  now.bytes = bytes_of(resources_.mover->bytes());
  const offload::CopyCounters copies = resources_.device->counters();
  now.busy.h2d = copies.in_busy_seconds;
  now.busy.d2h = copies.out_busy_seconds;
  if (resources_.files.io) {
    const nvme::IoCounters io = resources_.files.io->counters();
    now.busy.nvme_read = io.read_busy_seconds;
    now.busy.nvme_written = io.write_busy_seconds;
  }
  now.busy.update = now.update.compute_seconds;
  count_network(resources_, now.bytes, now.busy);
  now.stalls = runner_.stalls();
  return now;
}

// A stall belongs to the slowest link that its bytes pass.
LinkSeconds RunMeter::stalls_between(const RunnerStalls& before, const RunnerStalls& after) const {
  bool weights_in_files = false;
  bool gradients_in_files = false;
  bool inputs_in_files = false;
  for (const plan::UnitPlacement& unit : resources_.plan.units) {
    weights_in_files = weights_in_files || unit.weights == Tier::nvme;
    gradients_in_files = gradients_in_files || unit.gradients == Tier::nvme;
    inputs_in_files =
        inputs_in_files || std::count(unit.inputs.begin(), unit.inputs.end(), Tier::nvme) > 0;
  }
  // Weights and gradients in memory wait for the other ranks longest.
  const bool several_ranks = resources_.plan.config.world_size > 1;
  const auto in_memory = [&](double LinkSeconds::*copies) {
    return several_ranks ? &LinkSeconds::network : copies;
  };
  LinkSeconds stalls;
  stalls.update = after.gather.update_seconds - before.gather.update_seconds;
  (weights_in_files ? stalls.nvme_read : stalls.*in_memory(&LinkSeconds::h2d)) +=
      after.gather.fetch_seconds - before.gather.fetch_seconds;
  (inputs_in_files ? stalls.nvme_read : stalls.h2d) +=
      after.inputs_in_seconds - before.inputs_in_seconds;
  (inputs_in_files ? stalls.nvme_written : stalls.d2h) +=
      after.inputs_out_seconds - before.inputs_out_seconds;
  (gradients_in_files ? stalls.nvme_written : stalls.*in_memory(&LinkSeconds::d2h)) +=
      after.gradients_seconds - before.gradients_seconds;
  return stalls;
}

void RunMeter::start() {
  backward_ = totals();
  updated_ = backward_.update;
  busy_ = backward_.busy;
}

void RunMeter::end_backward() {
  const Totals now = totals();
  pending_ = StepRecord{};
  pending_.bytes = minus(now.bytes, backward_.bytes);
  pending_.stall_seconds = stalls_between(backward_.stalls, now.stalls);
  backward_ = now;
}

void RunMeter::begin_evaluation() {
  busy_before_evaluation_ = totals().busy;
}

void RunMeter::end_evaluation() {
  const Totals now = totals();
  add(busy_, minus(now.busy, busy_before_evaluation_));
  backward_ = now;
}

void RunMeter::end_updates(StepRecord& record) {
  const Totals all = totals();
  const UpdateCounters& now = all.update;
  record.bytes = pending_.bytes;
  record.stall_seconds = pending_.stall_seconds;
  add(record.bytes, minus(bytes_of(now), bytes_of(updated_)));
  const std::uint64_t of_checkpoints = now.checkpoint_read_bytes - updated_.checkpoint_read_bytes;
  updated_ = now;
  LinkSeconds busy = minus(all.busy, busy_);
  record.compute_seconds =
      std::max(0.0, record.seconds - sum_of_stalls(record.stall_seconds) - record.commit_seconds);
  busy.compute = record.compute_seconds;
  busy_ = all.busy;
  watch_drive(record, of_checkpoints, busy);
  step_busy_.add(busy);
  step_stalls_.add(record.stall_seconds);
  step_network_bytes_ = record.bytes.network;
}

RankNumbers RunMeter::numbers() const {
  RankNumbers own;
  own.by_rank.emplace_back();
  const auto add_number = [&](const std::string& name, double value) {
    own.names.push_back(name);
    own.by_rank.front().push_back(value);
  };
  for (const auto& [name, link] : kTimedLinks) {
    const std::string of = name;
    add_number("busy_seconds." + of, median_of(step_busy_, link));
    if (link != &LinkSeconds::compute)
      add_number("stall_seconds." + of, median_of(step_stalls_, link));
  }
  add_number("network_sent_bytes_per_step", static_cast<double>(step_network_bytes_));
  const auto& device = resources_.device->memory();
  add_number("device_peak_bytes", static_cast<double>(device.usage().peak_live_bytes));
  add_number("host_peak_bytes", static_cast<double>(resources_.host_pool->usage().peak_live_bytes));
  std::uint64_t state_bytes = 0;
  for (const zero::UnitLayout& layout : resources_.plan.layouts) {
    if (layout.frozen) continue;
    state_bytes += zero::shard_range(layout, 0, resources_.plan.config.world_size).count *
                   resources_.plan.state_format.element_bytes();
  }
  add_number("state_bytes", static_cast<double>(state_bytes));
  return own;
}

void RunMeter::watch_drive(const StepRecord& record, std::uint64_t checkpoint_bytes,
                           const LinkSeconds& busy) {
  const double seconds = std::max(busy.nvme_read, busy.nvme_written);
  const auto bytes =
      static_cast<double>(record.bytes.nvme_read + record.bytes.nvme_written + checkpoint_bytes);
  if (bytes == 0 || seconds <= 0) return;
  const auto slowdown = drive_.add(record.step, bytes, seconds);
  if (!slowdown) return;
  const auto rate = [](double bytes_per_second) {
    return format_bytes(static_cast<std::uint64_t>(bytes_per_second));
  };
  notices_.push_back("from about step " + std::to_string(slowdown->since_step) +
                     " on the drive of " + resources_.plan.swap_directories().front() + " moves " +
                     rate(slowdown->now) + " a second, before it was " + rate(slowdown->before) +
                     ": another program may use it, or it is full, hot or failing");
  log(LogLevel::warn, notices_.back());
}

// Drives are numbered like the directories. Where states and scratch have different directories,
// the first drive of each shares queue 0.
void RunMeter::fill_drives(RunReport& report) const {
  if (!resources_.files.io) return;
  const plan::Plan& plan = resources_.plan;
  std::vector<std::string> names(resources_.files.io->drives());
  const auto add = [&](std::size_t drive, const std::string& directory) {
    if (names[drive].find(directory) != std::string::npos) return;
    names[drive] += (names[drive].empty() ? "" : ", ") + directory;
  };
  for (const auto* directories : {&plan.directories.states, &plan.directories.scratch}) {
    for (std::size_t i = 0; i < directories->size(); ++i) add(i, (*directories)[i]);
  }
  for (std::size_t drive = 0; drive < names.size(); ++drive) {
    const nvme::IoCounters counters = resources_.files.io->drive_counters(drive);
    report.traffic.drives.push_back(
        {names[drive], counters.read_bytes, counters.written_bytes,
         std::max(counters.read_busy_seconds, counters.write_busy_seconds)});
  }
}

void RunMeter::fill(RunReport& report) const {
  report.memory.peak.device = resources_.device->memory().usage().peak_live_bytes;
  report.memory.peak.host = resources_.host_pool->usage().peak_live_bytes;
  if (resources_.pinned_pool)
    report.memory.pinned_peak_bytes = resources_.pinned_pool->usage().peak_live_bytes;
  if (resources_.files.store) {
    report.memory.peak.nvme += resources_.files.store->file_bytes();
    report.traffic.life_written_bytes = resources_.files.store->written_bytes();
    report.traffic.rated_bytes = resources_.plan.config.sluice.io.drive_endurance_bytes *
                                 resources_.files.store->place().directories().size();
  }
  if (resources_.files.scratch) {
    for (const nvme::SwapFile& part : resources_.files.scratch->file().parts())
      report.memory.peak.nvme += part.size_bytes();
  }
  const UpdateCounters updates = resources_.updater->counters();
  if (updates.elements > 0) {
    report.speed.update_share_of_gpu =
        static_cast<double>(updates.device_elements) / static_cast<double>(updates.elements);
  }
  const SpeculativeCounters& speculated = updates.speculated;
  report.speed.speculation = {speculated.kept, speculated.dropped, speculated.dropped_seconds};
  fill_drives(report);
  report.notices = notices_;
  if (step_busy_.values().empty()) return;

  LinkSeconds& limits = report.speed.limits;
  for (const auto& [name, link] : kTimedLinks) limits.*link = median_of(step_busy_, link);
  report.speed.bound_by = std::ranges::max_element(kTimedLinks, {}, [&](const auto& each) {
                            return limits.*each.second;
                          })->first;
}

void warn_of_slow_drive(const RunReport& report) {
  std::vector<double> busy_seconds;
  for (const DriveUse& drive : report.traffic.drives) busy_seconds.push_back(drive.busy_seconds);
  const std::optional<std::size_t> slow = nvme::slow_drive(busy_seconds);
  if (!slow) return;
  const DriveUse& drive = report.traffic.drives[*slow];
  const double rate =
      static_cast<double>(drive.read_bytes + drive.written_bytes) / drive.busy_seconds;
  log(LogLevel::warn, "the other drives wait for that of " + drive.directory + ", which moves " +
                          format_bytes(static_cast<std::uint64_t>(rate)) +
                          " a second: look at it, give it a smaller share (\"sluice\": {\"io\": "
                          "{\"drive_weights\"}}) and begin anew, or leave it out");
}

}  // namespace sluice::train
