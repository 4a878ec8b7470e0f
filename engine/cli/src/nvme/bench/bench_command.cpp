// nvme bench: measures a drive through the engine that training uses; --fio measures fio beside it.

#include <json/value.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "command/commands.hpp"
#include "files/output_file.hpp"
#include "nvme/bench/bench_page.hpp"
#include "nvme/bench/bench_target.hpp"
#include "nvme/bench/device_bench.hpp"
#include "nvme/bench/fio.hpp"
#include "page/html_page.hpp"
#include "process/exit_code.hpp"
#include "process/signals.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"
#include "sluice/base/threads.hpp"
#include "sluice/base/time/elapsed.hpp"
#include "sluice/nvme/paired_ratios.hpp"
#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kSampleEvery = std::chrono::milliseconds(100);

// Runs one target's load on a separate thread, while the main thread reads the counters.
class RunningLoad {
 public:
  RunningLoad(BenchTarget& target, double seconds, const std::atomic<int>& stop)
      : target_(target),
        moved_bytes_(moved()),
        thread_(start_thread("sluice-bench", [this, seconds, &stop] {
          try {
            result_ = target_.load().run(seconds, [&stop] { return stop != 0; });
          } catch (...) {
            error_ = std::current_exception();
          }
          done_ = true;
        })) {}
  ~RunningLoad() {
    if (thread_.joinable()) thread_.join();
  }
  RunningLoad(const RunningLoad&) = delete;
  RunningLoad& operator=(const RunningLoad&) = delete;

  bool done() const { return done_; }
  // Bytes that were moved since the last call.
  std::uint64_t take_moved() {
    const std::uint64_t now = moved();
    return now - std::exchange(moved_bytes_, now);
  }
  nvme::LoadResult finish() {
    thread_.join();
    if (error_) std::rethrow_exception(error_);
    return result_;
  }

 private:
  std::uint64_t moved() const {
    const nvme::IoCounters counters = target_.engine().counters();
    return counters.read_bytes + counters.written_bytes;
  }

  BenchTarget& target_;
  std::uint64_t moved_bytes_;
  nvme::LoadResult result_;
  std::exception_ptr error_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

// Measures all targets at the same time; the outcomes receive the samples.
void run_all(std::vector<BenchTarget>& targets, double seconds, const std::atomic<int>& stop,
             Console& console, std::vector<BenchOutcome>& outcomes) {
  std::vector<std::unique_ptr<RunningLoad>> running;
  running.reserve(targets.size());
  const Clock::time_point begin = Clock::now();
  for (BenchTarget& target : targets)
    running.push_back(std::make_unique<RunningLoad>(target, seconds, stop));
  Clock::time_point sampled = begin;
  while (!std::all_of(running.begin(), running.end(), [](const auto& r) { return r->done(); })) {
    std::this_thread::sleep_for(kSampleEvery);  // the interval of the samples
    const double interval = seconds_since(sampled);
    sampled = Clock::now();
    double sum = 0;
    for (std::size_t i = 0; i < running.size(); ++i) {
      const double rate = static_cast<double>(running[i]->take_moved()) / interval;
      sum += rate;
      // The drain of the last requests is not a sample of the drive.
      if (!running[i]->done() && seconds_since(begin) <= seconds)
        outcomes[i].samples.push_back({seconds_since(begin), rate});
    }
    console.status("measuring  " + format_gigabytes(sum) + " GB/s  " +
                   format_duration(std::ceil(std::max(0.0, seconds - seconds_since(begin)))) +
                   " left");
  }
  console.status("");
  for (std::size_t i = 0; i < running.size(); ++i) outcomes[i].result.add(running[i]->finish());
}

// Runs our slice, fio's, and fio's again; the order is reversed in every other round. A round that
// a signal ends does not count; without any, the outcome has no comparison.
void run_beside_fio(const NvmeBenchArguments& arguments, BenchTarget& target,
                    const std::atomic<int>& stop, Console& console, BenchOutcome& outcome) {
  FioComparison comparison;
  const int rounds =
      std::max(1, static_cast<int>(std::lround(arguments.seconds / arguments.slice_seconds)));
  target.load().run(0.2);  // the first requests of a process are slow; fio warms up by itself
  for (int round = 0; round < rounds && stop == 0; ++round) {
    nvme::LoadResult ours;
    FioSlice fio;
    FioSlice control;
    const auto run = [&](int slice) {
      if (slice == 0) ours = target.load().run(arguments.slice_seconds);
      if (slice == 1) fio = run_fio(arguments, target, outcome.backend);
      if (slice == 2) control = run_fio(arguments, target, outcome.backend);
    };
    try {
      for (int i = 0; i < 3 && stop == 0; ++i) run(round % 2 == 0 ? i : 2 - i);
    } catch (const Error&) {
      if (stop == 0) throw;  // a terminal sends its Ctrl-C to fio too
    }
    if (stop != 0) break;
    outcome.result.add(ours);
    outcome.samples.push_back({round + 1.0, ours.bytes_per_second()});
    comparison.ratios.push_back(ours.bytes_per_second() / fio.bytes_per_second());
    comparison.controls.push_back(control.bytes_per_second() / fio.bytes_per_second());
    comparison.fio.add(fio);
    comparison.rates.push_back(fio.bytes_per_second());
    console.status("round " + std::to_string(round + 1) + " of " + std::to_string(rounds) +
                   "  sluice " + format_gigabytes(ours.bytes_per_second()) + "  fio " +
                   format_gigabytes(fio.bytes_per_second()) + " GB/s");
  }
  console.status("");
  if (!comparison.ratios.empty()) outcome.fio = std::move(comparison);
}

double microseconds(const nvme::LatencyHistogram& latencies, double share) {
  return 1e-3 * static_cast<double>(latencies.quantile(share).count());
}

nvme::LatencyHistogram all_latencies(const nvme::LoadResult& result) {
  nvme::LatencyHistogram all = result.latency.reads;
  all.add(result.latency.writes);
  return all;
}

std::vector<std::string> table_row(const std::string& what, const nvme::LoadResult& result,
                                   CpuTime cpu) {
  const nvme::LatencyHistogram all = all_latencies(result);
  const double requests =
      result.seconds > 0 ? static_cast<double>(result.requests) / result.seconds : 0;
  return {what,
          format_gigabytes(result.bytes_per_second()),
          format_count(static_cast<std::uint64_t>(std::llround(requests))),
          format_number("%.0f", microseconds(all, 0.5)),
          format_number("%.0f", microseconds(all, 0.99)),
          format_number("%.0f", microseconds(all, 0.999)),
          cpu == CpuTime::known ? format_number("%.3f", result.cpu_seconds_per_gib()) : "-",
          format_bytes(result.bounce_bytes)};
}

std::vector<std::string> fio_row(const std::string& what, const FioSlice& fio) {
  const double seconds = std::max(fio.seconds, 1e-9);
  const double gib = fio.bytes / static_cast<double>(kGiB);
  return {what,
          format_gigabytes(fio.bytes_per_second()),
          format_count(static_cast<std::uint64_t>(std::llround(fio.requests / seconds))),
          "-",
          "-",
          "-",
          format_number("%.3f", gib > 0 ? fio.cpu_seconds / gib : 0),
          "-"};
}

// A row for each path, with fio's below it; with several paths also their sum.
std::vector<std::vector<std::string>> table_rows(const NvmeBenchArguments& arguments,
                                                 const std::vector<BenchOutcome>& outcomes) {
  std::vector<std::vector<std::string>> rows = {
      {"", "GB/s", "IOPS", "p50 us", "p99 us", "p99.9 us", "CPU s/GiB", "bounced"}};
  const CpuTime cpu = cpu_time_of(arguments);
  nvme::LoadResult total;
  for (const BenchOutcome& outcome : outcomes) {
    rows.push_back(table_row(outcome.path, outcome.result, cpu));
    if (outcome.fio)
      rows.push_back(
          fio_row(outcomes.size() > 1 ? "fio, " + outcome.path : "fio", outcome.fio->fio));
    // The paths were measured at the same time, and each counted the time of the whole process.
    const double seconds = std::max(total.seconds, outcome.result.seconds);
    const double cpu_seconds = std::max(total.cpu_seconds, outcome.result.cpu_seconds);
    total.add(outcome.result);
    total.seconds = seconds;
    total.cpu_seconds = cpu_seconds;
  }
  if (cpu == CpuTime::of_all) rows.push_back(table_row("all", total, CpuTime::known));
  return rows;
}

void show_comparison(const NvmeBenchArguments& arguments, const BenchOutcome& outcome,
                     Console& console) {
  const std::size_t rounds = outcome.fio->ratios.size();
  console.print(outcome.path + ": " + counted(rounds, "round") + " of slices of " +
                format_number("%g", arguments.slice_seconds) + " s" +
                (rounds < FioComparison::kLeastRounds
                     ? "; an interval needs " + std::to_string(FioComparison::kLeastRounds) +
                           ": give more --seconds, or a shorter --slice"
                     : "") +
                "\nfio's command: " + outcome.fio_line);
  console.print(format_table(comparison_rows(*outcome.fio)));
}

void show(const NvmeBenchArguments& arguments, const std::vector<BenchOutcome>& outcomes,
          Console& console) {
  console.print(bench_title(arguments, outcomes.front()));
  console.print(format_table(table_rows(arguments, outcomes)));
  if (arguments.fio && arguments.pattern == nvme::LoadPattern::swap) {
    console.print(
        "fio has no swap: it reads and writes as many bytes each way, in whole blocks" +
        std::string(arguments.tensors ? "; the tensors are mostly smaller than a block" : ""));
  }
  for (const BenchOutcome& outcome : outcomes) {
    if (outcome.fio) show_comparison(arguments, outcome, console);
  }
}

Json::Value ratios_json(const std::vector<double>& ratios) {
  const nvme::RatioSummary summary = nvme::summarize_ratios(ratios);
  Json::Value object(Json::objectValue);
  object["median"] = summary.median;
  if (ratios.size() >= FioComparison::kLeastRounds) {
    object["quartiles"].append(summary.lower_quartile);
    object["quartiles"].append(summary.upper_quartile);
    object["interval90"].append(summary.interval_begin);
    object["interval90"].append(summary.interval_end);
  }
  for (const double ratio : ratios) object["all"].append(ratio);
  return object;
}

Json::Value to_json(const NvmeBenchArguments& arguments, const BenchOutcome& outcome) {
  const nvme::LoadResult& result = outcome.result;
  const nvme::LatencyHistogram all = all_latencies(result);
  Json::Value object(Json::objectValue);
  object["path"] = valid_utf8(outcome.path);
  object["op"] = std::string(name_of(arguments.pattern));
  object["access"] = std::string(name_of(arguments.access));
  object["backend"] = outcome.backend;
  object["size_bytes"] = Json::UInt64(outcome.size_bytes);
  object["block_bytes"] = Json::UInt64(arguments.block_bytes);
  object["depth"] = arguments.depth;
  if (has_order(arguments.pattern)) object["reads_per_write"] = reads_per_write(arguments);
  if (outcome.backend == "threads") object["io_threads"] = arguments.io_threads;
  if (arguments.tensors) object["tensors"] = *arguments.tensors;
  object["direct"] = outcome.why_buffered.empty();
  object["seconds"] = result.seconds;
  object["GBps"] = 1e-9 * result.bytes_per_second();
  object["read_bytes"] = Json::UInt64(result.read_bytes);
  object["written_bytes"] = Json::UInt64(result.written_bytes);
  object["iops"] = result.seconds > 0 ? static_cast<double>(result.requests) / result.seconds : 0;
  object["p50_us"] = microseconds(all, 0.5);
  object["p99_us"] = microseconds(all, 0.99);
  object["p999_us"] = microseconds(all, 0.999);
  object["cpu_s_per_GiB"] = cpu_time_of(arguments) == CpuTime::known
                                ? Json::Value(result.cpu_seconds_per_gib())
                                : Json::Value();
  object["bounce_bytes"] = Json::UInt64(result.bounce_bytes);
  if (outcome.fio) {
    const FioSlice& fio = outcome.fio->fio;
    Json::Value& peer = object["fio"];
    peer["GBps"] = 1e-9 * fio.bytes_per_second();
    peer["iops"] = fio.seconds > 0 ? fio.requests / fio.seconds : 0;
    peer["cpu_s_per_GiB"] =
        fio.bytes > 0 ? fio.cpu_seconds * static_cast<double>(kGiB) / fio.bytes : 0;
    peer["command"] = valid_utf8(outcome.fio_line);
    peer["ratio"] = ratios_json(outcome.fio->ratios);
    peer["control"] = ratios_json(outcome.fio->controls);
  }
  return object;
}

std::vector<BenchTarget> open_targets(const NvmeBenchArguments& arguments, Console& console,
                                      const std::atomic<int>& stop) {
  const DriveFileOptions options = drive_options(arguments);
  for (const std::string& path : arguments.paths) {
    if (const auto size_bytes = bench_file_bytes(path, options)) check_load(arguments, *size_bytes);
  }
  std::vector<BenchTarget> targets;
  for (DriveFile& drive : open_drive_files(options, console, stop)) {
    targets.emplace_back(arguments, std::move(drive));
  }
  return targets;
}

// Outcomes that say how each target is measured; the figures are still to come.
std::vector<BenchOutcome> begin_outcomes(const NvmeBenchArguments& arguments,
                                         std::vector<BenchTarget>& targets, Console& console) {
  std::vector<BenchOutcome> outcomes;
  for (BenchTarget& target : targets) {
    BenchOutcome outcome;
    outcome.path = target.path();
    outcome.backend = target.engine().backend_name();
    outcome.why_buffered = target.file().why_buffered();
    outcome.size_bytes = target.size_bytes();
    if (arguments.fio) outcome.fio_line = fio_line(arguments, target, outcome.backend);
    outcomes.push_back(std::move(outcome));
    if (!target.backend_choice().empty()) console.print("I/O by " + target.backend_choice());
  }
  return outcomes;
}

}  // namespace

int run_nvme_bench(const NvmeBenchArguments& arguments, Session& session) {
  if (arguments.gpu) return run_device_bench(arguments, session);
  Console& console = session.console();
  const StopSignals signals;
  if (arguments.fio) require_fio();  // before a file is filled
  if (!arguments.html_path.empty()) check_page_path("--html", arguments.html_path, arguments.paths);
  std::vector<BenchTarget> targets = open_targets(arguments, console, signals.stop());
  std::vector<BenchOutcome> outcomes = begin_outcomes(arguments, targets, console);
  if (arguments.fio) {
    for (std::size_t i = 0; i < targets.size(); ++i)
      run_beside_fio(arguments, targets[i], signals.stop(), console, outcomes[i]);
    std::erase_if(outcomes, [](const BenchOutcome& outcome) { return !outcome.fio; });
    if (outcomes.empty()) throw Interrupted(signals.stop());
  } else {
    run_all(targets, arguments.seconds, signals.stop(), console, outcomes);
  }
  for (BenchTarget& target : targets) target.clean();  // first: it may be the room for the page
  show(arguments, outcomes, console);
  if (!arguments.html_path.empty()) {
    write_file(arguments.html_path, bench_page(arguments, outcomes, shell_line(session.argv())));
    console.print("page: " + arguments.html_path);
  }
  Json::Value object(Json::objectValue);
  if (outcomes.size() == 1) {
    object = to_json(arguments, outcomes.front());
  } else {
    for (const BenchOutcome& outcome : outcomes)
      object["paths"].append(to_json(arguments, outcome));
  }
  session.emit(object);
  return signals.stop() == 0 ? kExitDone : exit_code_of_signal(signals.stop());
}

}  // namespace sluice::cli
