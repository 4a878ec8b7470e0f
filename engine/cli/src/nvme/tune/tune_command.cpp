// nvme tune: finds the settings of the I/O engine that suit the drives, and writes them as a part
// of a configuration.

#include <json/value.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "command/commands.hpp"
#include "files/output_file.hpp"
#include "nvme/drive_file.hpp"
#include "nvme/tune/tune_outcome.hpp"
#include "nvme/tune/tune_page.hpp"
#include "nvme/tune/tune_text.hpp"
#include "nvme/tune/tuned_config.hpp"
#include "page/html_page.hpp"
#include "process/exit_code.hpp"
#include "process/signals.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"
#include "sluice/base/ticket.hpp"
#include "sluice/base/time/elapsed.hpp"
#include "sluice/base/worker.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/nvme/load.hpp"
#include "sluice/nvme/paired_ratios.hpp"
#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {

using Clock = std::chrono::steady_clock;
using nvme::LoadPattern;

constexpr double kSwapShare = 0.12;  // share of the time for the order of reads and writes
constexpr double kPollingShare = 0.08;
constexpr int kPollingRounds = 8;
constexpr unsigned kReadsPerWrite[] = {1, 3, 8, 32};
constexpr unsigned kUsualReadsPerWrite = 3;
constexpr int kSwapRounds = 8;
// A change of the order, and a core for polling, must gain at least this much.
constexpr double kWorthwhile = 1.03;
constexpr double kShortestSlice = 0.03;

// Thrown to end early; not an error.
struct Stopped {};

// Measures on all drives at the same time.
class Measuring {
 public:
  Measuring(const NvmeTuneArguments& arguments, const std::vector<DriveFile>& drives,
            const std::atomic<int>& stop)
      : arguments_(arguments), drives_(drives), stop_(stop) {
    for (std::size_t i = 0; i < drives_.size(); ++i) workers_.emplace_back("sluice-tune");
  }

  // Bytes per second of all drives together. Throws Stopped, IoError.
  double rate(const nvme::IoEngineOptions& options, LoadPattern pattern, double seconds,
              nvme::SubmitPolling polling = nvme::SubmitPolling::off) {
    std::vector<double> rates(drives_.size(), 0);
    std::vector<Ticket> measured;
    for (std::size_t i = 0; i < drives_.size(); ++i) {
      measured.push_back(workers_[i].begin(
          [&, i] { rates[i] = rate_of(drives_[i], options, pattern, seconds, polling); }));
    }
    finish_all(measured);
    if (stop_ != 0) throw Stopped{};
    double sum = 0;
    for (const double each : rates) sum += each;
    return sum;
  }

 private:
  double rate_of(const DriveFile& drive, const nvme::IoEngineOptions& options, LoadPattern pattern,
                 double seconds, nvme::SubmitPolling polling) const {
    nvme::IoEngine engine(
        nvme::make_backend(arguments_.backend, options.depth, arguments_.io_threads, polling)
            .backend,
        options);
    nvme::LoadOptions load_options;
    load_options.pattern = pattern;
    load_options.size_bytes = align_down(drive.size_bytes(), options.block_bytes);
    load_options.verify = drive.own();
    nvme::Load load(engine, drive.file(), load_options);
    return load.run(seconds, [this] { return stop_ != 0; }).bytes_per_second();
  }

  const NvmeTuneArguments& arguments_;
  const std::vector<DriveFile>& drives_;
  const std::atomic<int>& stop_;
  std::deque<Worker> workers_;  // one for each drive
};

// Settings whose queue fits into the smallest file at least twice.
std::vector<nvme::TuneSetting> settings_for(const std::vector<DriveFile>& drives) {
  std::uint64_t least = ~std::uint64_t{0};
  for (const DriveFile& drive : drives) least = std::min(least, drive.size_bytes());
  std::vector<nvme::TuneSetting> settings = nvme::tune_settings();
  std::erase_if(settings, [&](const nvme::TuneSetting& setting) {
    return 2 * setting.bytes_in_flight() > least;
  });
  SLUICE_CHECK(!settings.empty(), "a size of " + format_bytes(least) +
                                      " is too small to tune on; expected at least 128KiB");
  return settings;
}

nvme::Tuner make_tuner(const std::vector<nvme::TuneSetting>& settings) {
  const bool has_default = std::ranges::find(settings, default_setting()) != settings.end();
  return nvme::Tuner(settings, has_default ? std::optional(default_setting()) : std::nullopt);
}

// Sweeps the surface until every round is done or `seconds` have passed since `begin`.
void sweep(nvme::Tuner& tuner, Measuring& measuring, Clock::time_point begin, double seconds,
           Console& console) {
  while (!tuner.done()) {
    const double left = seconds - seconds_since(begin);
    if (left <= 0) return;
    const auto trials = static_cast<double>(tuner.planned_trials() - tuner.recorded_trials());
    // Setup costs time too; the trials so far show how much.
    const double setup =
        tuner.recorded_trials() == 0
            ? 0.02
            : std::max(0.0,
                       seconds_since(begin) / static_cast<double>(tuner.recorded_trials()) / 3 -
                           seconds / static_cast<double>(tuner.planned_trials()) / 3);
    const double slice = std::max(kShortestSlice, left / trials / 3 - std::min(setup, 0.1));
    const nvme::TuneSetting setting = tuner.next();
    const nvme::IoEngineOptions options{setting.block_bytes, setting.depth};
    nvme::TuneRates rates;
    rates.read = measuring.rate(options, LoadPattern::read, slice);
    rates.write = measuring.rate(options, LoadPattern::write, slice);
    rates.mixed = measuring.rate(options, LoadPattern::mixed, slice);
    tuner.record(rates);
    const nvme::TunePoint best = tuner.choose().point;
    console.status("tuning " + std::to_string(tuner.recorded_trials()) + " of " +
                   std::to_string(tuner.planned_trials()) + "  so far " +
                   setting_text(best.setting) + ": " + rates_text(best.rates) + "  " +
                   format_duration(std::ceil(left)) + " left");
  }
}

// Measures orders of reads and writes with the pattern swap, an optimizer's step.
std::vector<SwapRates> compare_orders(const nvme::TuneSetting& setting, Measuring& measuring,
                                      double seconds, Console& console) {
  std::vector<SwapRates> rates;
  for (const unsigned reads : kReadsPerWrite) rates.push_back({reads, {}});
  const double slice =
      std::max(kShortestSlice, seconds / kSwapRounds / static_cast<double>(rates.size()) - 0.02);
  for (int round = 0; round < kSwapRounds; ++round) {
    console.status("tuning the order of reads and writes, round " + std::to_string(round + 1) +
                   " of " + std::to_string(kSwapRounds));
    for (std::size_t i = 0; i < rates.size(); ++i) {
      SwapRates& order = rates[round % 2 == 0 ? i : rates.size() - 1 - i];
      const nvme::IoEngineOptions options{setting.block_bytes, setting.depth,
                                          order.reads_per_write};
      order.rounds.push_back(measuring.rate(options, LoadPattern::swap, slice));
    }
  }
  return rates;
}

unsigned best_order(const std::vector<SwapRates>& orders) {
  const auto usual = std::ranges::find(orders, kUsualReadsPerWrite, &SwapRates::reads_per_write);
  unsigned best = kUsualReadsPerWrite;
  double most = 0;
  for (const SwapRates& order : orders) {
    const nvme::RatioSummary gain = nvme::summarize_pairs(order.rounds, usual->rounds);
    if (!gain.clearly_above(kWorthwhile) || gain.median <= most) continue;
    most = gain.median;
    best = order.reads_per_write;
  }
  return best;
}

// Measures whether the pattern swap gains from a kernel that polls for requests.
void try_polling(TuneOutcome& outcome, Measuring& measuring, double seconds, Console& console) {
  if (outcome.backend != "io_uring") return;
  console.status("tuning: the kernel polling for requests");
  const nvme::TuneSetting& setting = outcome.choice.point.setting;
  const nvme::IoEngineOptions options{setting.block_bytes, setting.depth, best_order(outcome.swap)};
  const double slice = std::max(kShortestSlice, seconds / kPollingRounds / 2 - 0.02);
  for (int round = 0; round < kPollingRounds; ++round) {
    for (const bool with : {round % 2 == 0, round % 2 != 0}) {
      (with ? outcome.polled : outcome.unpolled)
          .push_back(measuring.rate(options, LoadPattern::swap, slice,
                                    with ? nvme::SubmitPolling::on : nvme::SubmitPolling::off));
    }
  }
  outcome.submit_polling =
      nvme::summarize_pairs(outcome.polled, outcome.unpolled).clearly_above(kWorthwhile);
}

Json::Value gain_json(const nvme::RatioSummary& gain) {
  Json::Value object(Json::objectValue);
  object["median"] = gain.median;
  object["interval90"].append(gain.interval_begin);
  object["interval90"].append(gain.interval_end);
  return object;
}

Json::Value rates_json(const nvme::TunePoint& point) {
  Json::Value object(Json::objectValue);
  object["block_size"] = point.setting.block_bytes;
  object["queue_depth"] = point.setting.depth;
  object["rounds"] = point.rounds;
  for (const SurfacePattern& pattern : kSurfacePatterns)
    object[std::string(pattern.name) + "_GBps"] = 1e-9 * (point.rates.*pattern.rate);
  return object;
}

Json::Value to_json(const NvmeTuneArguments& arguments, const TuneOutcome& outcome) {
  Json::Value object(Json::objectValue);
  object["file"] = valid_utf8(arguments.out_path);
  object["backend"] = outcome.backend;
  object["seconds"] = outcome.seconds;
  object["settings"] = Json::UInt64(outcome.surface.size());
  object["chosen"] = rates_json(outcome.choice.point);
  object["chosen"]["reads_per_write"] = outcome.reads_per_write;
  object["chosen"]["submit_polling"] = outcome.submit_polling;
  if (outcome.choice.gain.median > 0) {
    Json::Value compared = gain_json(outcome.choice.gain);
    compared["block_size"] = outcome.choice.compared.block_bytes;
    compared["queue_depth"] = outcome.choice.compared.depth;
    object["beside_default"] = compared;
  }
  if (!outcome.polled.empty()) {
    object["polling"] = gain_json(nvme::summarize_pairs(outcome.polled, outcome.unpolled));
    object["polling"]["off_GBps"] = 1e-9 * nvme::geometric_mean(outcome.unpolled);
    object["polling"]["on_GBps"] = 1e-9 * nvme::geometric_mean(outcome.polled);
  }
  for (const nvme::TunePoint& point : outcome.surface)
    if (point.rounds > 0) object["surface"].append(rates_json(point));
  for (const SwapRates& order : outcome.swap) {
    Json::Value entry(Json::objectValue);
    entry["reads_per_write"] = order.reads_per_write;
    entry["swap_GBps"] = 1e-9 * nvme::geometric_mean(order.rounds);
    object["swap"].append(entry);
  }
  return object;
}

void check_outputs(const NvmeTuneArguments& arguments) {
  check_writable("--out", arguments.out_path, arguments.paths);
  check_is_settings(arguments.out_path);
  if (!arguments.html_path.empty()) check_page_path("--html", arguments.html_path, arguments.paths);
  SLUICE_CHECK(arguments.html_path != arguments.out_path,
               "--out and --html name the same file, " + arguments.out_path);
}

// Measures for the seconds that were asked for. Throws Interrupted when `stop` is set.
TuneOutcome tune(const NvmeTuneArguments& arguments, const std::vector<DriveFile>& drives,
                 const std::atomic<int>& stop, Console& console) {
  TuneOutcome outcome;
  const nvme::BackendChoice choice = nvme::make_backend(arguments.backend, 1, arguments.io_threads);
  outcome.backend = choice.backend->name();
  if (!choice.why_not_better.empty()) console.print("I/O by " + choice.why_not_better);
  const auto begin = Clock::now();
  nvme::Tuner tuner = make_tuner(settings_for(drives));
  Measuring measuring(arguments, drives, stop);
  try {
    sweep(tuner, measuring, begin, (1 - kSwapShare - kPollingShare) * arguments.seconds, console);
    outcome.choice = tuner.choose();
    outcome.swap = compare_orders(outcome.choice.point.setting, measuring,
                                  kSwapShare * arguments.seconds, console);
    try_polling(outcome, measuring, kPollingShare * arguments.seconds, console);
  } catch (const Stopped&) {
    console.status("");
    throw Interrupted(stop);
  }
  console.status("");
  outcome.surface = tuner.points();
  outcome.finished = tuner.done();
  outcome.reads_per_write = best_order(outcome.swap);
  outcome.seconds = seconds_since(begin);
  return outcome;
}

}  // namespace

int run_nvme_tune(const NvmeTuneArguments& arguments, Session& session) {
  Console& console = session.console();
  const StopSignals signals;
  check_outputs(arguments);
  std::vector<DriveFile> drives =
      open_drive_files({arguments, kPageBytes, "nvme tune"}, console, signals.stop());
  const TuneOutcome outcome = tune(arguments, drives, signals.stop(), console);

  for (DriveFile& drive : drives) drive.clean();  // first: it may be the room for what follows
  console.print(tune_text(outcome));
  write_file(arguments.out_path, tuned_config(arguments, outcome));
  console.print("settings: " + arguments.out_path +
                "; to train with them:\n  sluice train --config ds.json --config " +
                shell_quote(arguments.out_path) + " ...");
  if (!arguments.html_path.empty()) {
    write_file(arguments.html_path, tune_page(arguments, outcome, shell_line(session.argv())));
    console.print("page: " + arguments.html_path);
  }
  session.emit(to_json(arguments, outcome));
  return kExitDone;
}

}  // namespace sluice::cli
