// A training library for tests of the program: no LibTorch, no training. SLUICE_FAKE_SCENARIO
// chooses the behaviour. The library sends signals to its own process at a step, so that no test
// waits.

#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "sluice/base/error.hpp"
#include "sluice/base/threads.hpp"
#include "sluice/config/model_config.hpp"
#include "sluice/config/train_config.hpp"
#include "sluice/plan/make_plan.hpp"
#include "sluice/train/library.hpp"

namespace sluice::train {
namespace {

constexpr std::int64_t kSignalStep = 3;

std::string scenario_name() {
  const char* chosen = std::getenv("SLUICE_FAKE_SCENARIO");
  return chosen == nullptr ? "" : chosen;
}

// Runs while the program loads the library.
__attribute__((constructor)) void on_load() {
  if (scenario_name() == "signal_while_loading") ::raise(SIGTERM);
  if (scenario_name() == "says_how_openmp_waits") {
    for (const char* name : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}) {
      const char* const value = std::getenv(name);
      std::fprintf(stderr, "%s=%s\n", name, value == nullptr ? "unset" : value);
    }
  }
  if (scenario_name() == "binds_to_one_core") {  // as OpenMP does with OMP_PROC_BIND
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<std::size_t>(::sched_getcpu()), &set);
    ::sched_setaffinity(0, sizeof set, &set);
  }
}

// Confined to thread: main.
class FakeLibrary : public TrainLibrary {
 public:
  void set_log_sink(LogSink sink, LogLevel) override { sink_ = std::move(sink); }

  RunReport train(const TrainRequest& request, TrainObserver& observer,
                  const std::atomic<int>& stop) override {
    const std::string scenario = scenario_name();
    const config::TrainConfig config = config::load_train_config(
        request.config_path, {.tuned_paths = request.tuned_paths, .settings = request.settings});
    const plan::Plan plan = plan::make_plan(config, config::load_model_config(request.model_path),
                                            request.placement, plan::probe_machine(config));
    if (scenario == "signal_before_the_plan") ::raise(SIGTERM);
    if (stop != 0) throw Interrupted(stop);
    observer.on_start("planning", 0);
    observer.on_plan(plan);
    observer.on_choices({"I/O by a fake"});
    observer.on_choices({std::to_string(allowed_cores().value_or(0)) + " cores"});
    sink_(LogLevel::warn, "a warning of the library");
    if (scenario == "io_error") throw IoError(ENOSPC, "pwrite", "swap/data", 4096, 512);
    if (scenario == "out_of_memory") throw OutOfMemory("host", 100, 10, "a tile");
    if (scenario == "unknown_error") throw std::runtime_error("something else");
    return run_steps(request.steps.value_or(12), scenario, observer, stop);
  }

  void generate(const GenerateRequest& request, GenerateObserver& observer,
                const std::atomic<int>&) override {
    const std::string scenario = scenario_name();
    if (scenario == "bad_weights") throw StorageError(request.weights_path, "bad weights");
    observer.on_ready();
    const std::string text = "abc\xC3(";
    for (std::int64_t i = 0; i < request.max_new_tokens; ++i) {
      observer.on_token(
          static_cast<unsigned char>(text[static_cast<std::size_t>(i) % text.size()]));
      if (scenario == "fails_at_a_token") throw StorageError(request.weights_path, "bad weights");
    }
  }

  plan::MachineRates probe(const plan::Plan&, const ProbeProgress& progress,
                           const std::atomic<int>&) override {
    progress("a block", 0.5);
    plan::MachineRates rates;
    rates.block.first = {.forward = 0.25, .forward_saving = 0.25, .backward = 0.5};
    return rates;
  }

 private:
  static RunReport run_steps(std::int64_t steps, const std::string& scenario,
                             TrainObserver& observer, const std::atomic<int>& stop) {
    RunReport report;
    report.speed.bound_by = "compute";
    observer.on_begin(1, steps);
    for (std::int64_t step = 1; step <= steps && stop == 0; ++step) {
      StepRecord record;
      record.step = step;
      record.loss = 5.0 / static_cast<double>(step);
      record.tokens = 64;
      record.seconds = 0.5;
      if (step == steps) record.eval_loss = 1.25;
      if (step == kSignalStep && scenario == "interrupt") ::raise(SIGINT);
      if (step == kSignalStep && scenario == "terminate") ::raise(SIGTERM);
      if (step == kSignalStep && scenario == "interrupt_twice") {
        ::raise(SIGINT);
        ::raise(SIGINT);
        ::abort();  // the second signal ends the process
      }
      if (step == kSignalStep && scenario == "interrupt_then_at_exit") {
        ::raise(SIGINT);
        std::atexit([] { ::raise(SIGINT); });
      }
      observer.on_step(record);
      report.last_step = report.committed_step = step;
    }
    if (scenario == "interrupt_uncommitted") {
      ::raise(SIGINT);
      report.committed_step = 0;
    }
    report.stopped_by_signal = stop;
    return report;
  }

  LogSink sink_;
};

}  // namespace

// The two symbols that the program looks up.
extern "C" __attribute__((visibility("default"))) const char* sluice_train_stamp() {
  return scenario_name() == "another_build" ? "0123456789abcdef" : own_train_stamp();
}

extern "C" __attribute__((visibility("default"))) TrainLibrary* sluice_train_library() {
  static auto* library = new FakeLibrary;  // lives as long as the process
  return library;
}

}  // namespace sluice::train
