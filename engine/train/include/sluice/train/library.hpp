#pragma once
// The training library as the command line sees it: loaded at run time (it brings LibTorch), talked
// to through this interface. No LibTorch here.

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sluice/base/dtype.hpp"
#include "sluice/base/log.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/plan/prediction.hpp"
#include "sluice/train/rank_place.hpp"
#include "sluice/train/report.hpp"

namespace sluice::train {

struct TrainRequest {
  std::string config_path;
  std::vector<std::string> tuned_paths;   // see config::LoadOptions
  std::vector<config::Setting> settings;  // likewise
  std::string model_path;
  std::vector<std::string> data_paths;  // files and folders (models::Dataset)
  std::optional<std::string> init_path;
  // Total, also after resume; absent: all of `epochs`, or 1000. With both, training ends with the
  // smaller number of steps.
  std::optional<std::int64_t> steps;
  std::optional<std::int64_t> epochs;  // set: the data is read in epochs
  std::optional<std::uint64_t> seed;   // overrides the configuration's
  bool resume = false;
  std::int64_t wait_seconds = 0;  // for a run that has the directories; 0: an error at once
  plan::Placement placement = plan::Placement::configured;
  // On a file or folder, or on the last fraction of the training data. At most one is set.
  struct Evaluation {
    std::optional<std::string> data_path;
    std::optional<double> fraction;
    std::int64_t every = 0;      // 0: only after the last step
    std::uint64_t windows = 64;  // at most; spread evenly over the evaluation text; 0: all
  };
  Evaluation evaluation;
  std::string report_dir;  // empty: no report files
  std::string rates_path;  // where rates are kept (plan::load_rates); empty: nowhere
  std::string trace_path;  // empty: no trace (sluice/base/trace.hpp)
  // Steps in the trace, from the beginning of the first until the last is committed. Absent: the
  // whole run.
  struct Steps {
    std::int64_t first = 1;
    std::int64_t last = 1;
  };
  std::optional<Steps> trace_steps;
  std::string command_line;  // for the report; may be empty
  RankPlace place;           // this process's; all ranks have the same request otherwise
};

// Called on the thread that trains, between steps. Thread-compatible.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  // Before the first step: the work that goes on now, as "planning", and the fraction of it that is
  // done (0 to 1). Called when the work changes, and on the way.
  virtual void on_start(const std::string& work, double done) = 0;
  // Before anything is allocated.
  virtual void on_plan(const plan::Plan& plan) = 0;
  // The files are open: what the machine chose for them, and why not better. May be empty.
  virtual void on_choices(const std::vector<std::string>& choices) = 0;
  // Training begins, or continues, after `first_step - 1` steps of `total_steps`.
  virtual void on_begin(std::int64_t first_step, std::int64_t total_steps) = 0;
  virtual void on_step(const StepRecord& record) = 0;
  // During an evaluation: windows done, and the total.
  virtual void on_eval_progress(std::uint64_t done, std::uint64_t total) = 0;
};

struct GenerateRequest {
  std::string model_path;
  // As models::WeightReader, or a run: a directory with a committed state.
  std::string weights_path;
  std::string prompt;
  std::int64_t max_new_tokens = 200;
  double temperature = 0.8;  // 0: always the likeliest token
  std::int64_t top_k = 0;    // 0: all
  std::uint64_t seed = 0;
  DType dtype = DType::fp32;  // that weights are held and computed in: fp32 or bf16
};
class GenerateObserver {
 public:
  virtual ~GenerateObserver() = default;
  // The weights have been read and checked; tokens follow.
  virtual void on_ready() = 0;
  virtual void on_token(std::int64_t token) = 0;
};

// Called before each measurement, with its name and the fraction of the probe that is done (0 to
// 1).
using ProbeProgress = std::function<void(const std::string& what, double done)>;

class TrainLibrary {
 public:
  virtual ~TrainLibrary() = default;
  // Sets the sink of the library's own log. Call it first, with the program's sink.
  virtual void set_log_sink(LogSink sink, LogLevel most_verbose) = 0;
  // Trains. Blocks. Throws the types of sluice/base/error.hpp. `stop` is polled between steps; a
  // nonzero value, the number of SIGINT or SIGTERM, ends training after the step in progress, and
  // the report says so. Throws Interrupted when the signal came before a file was opened.
  // With several ranks in `request.place`, joins them (once in a process), and all of them stop
  // together. Only rank 0 writes steps.jsonl, report.json and monitors; each rank writes a trace,
  // to PATH.rankN from rank 1 on. Throws RankFailure when another rank has failed.
  virtual RunReport train(const TrainRequest& request, TrainObserver& observer,
                          const std::atomic<int>& stop) = 0;
  virtual void generate(const GenerateRequest& request, GenerateObserver& observer,
                        const std::atomic<int>& stop) = 0;
  // Measures the rates that predictions for this plan use. Blocks for up to a minute; the machine
  // should be idle otherwise. Throws IoError, Interrupted.
  virtual plan::MachineRates probe(const plan::Plan& plan, const ProbeProgress& progress,
                                   const std::atomic<int>& stop) = 0;
};

// Names the headers that this program or library was built with. Its source is made by the build.
const char* own_train_stamp();

// The two symbols of the shared library. The first returns its own_train_stamp(): a program calls
// the second only where its own is equal. The object lives as long as the process.
extern "C" const char* sluice_train_stamp();
using TrainStampEntry = const char* (*)();
inline constexpr const char* kTrainStampName = "sluice_train_stamp";
extern "C" TrainLibrary* sluice_train_library();
using TrainLibraryEntry = TrainLibrary* (*)();
inline constexpr const char* kTrainLibraryEntryName = "sluice_train_library";

}  // namespace sluice::train
