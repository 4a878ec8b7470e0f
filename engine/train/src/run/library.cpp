#include "sluice/train/library.hpp"

#include "measure/probe.hpp"
#include "run/run.hpp"
#include "sluice/models/vector_math.hpp"

namespace sluice::train {

namespace {

class Library final : public TrainLibrary {
 public:
  void set_log_sink(LogSink sink, LogLevel most_verbose) override {
    sluice::set_log_sink(std::move(sink), most_verbose);
  }
  RunReport train(const TrainRequest& request, TrainObserver& observer,
                  const std::atomic<int>& stop) override {
    return run_training(request, observer, stop);
  }
  void generate(const GenerateRequest& request, GenerateObserver& observer,
                const std::atomic<int>& stop) override {
    run_generation(request, observer, stop);
  }
  plan::MachineRates probe(const plan::Plan& plan, const ProbeProgress& progress,
                           const std::atomic<int>& stop) override {
    return probe_rates(plan, progress, stop);
  }
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* sluice_train_stamp() {
  return own_train_stamp();
}

extern "C" __attribute__((visibility("default"))) TrainLibrary* sluice_train_library() {
  static Library library;
  models::settle_vector_math();
  return &library;
}

}  // namespace sluice::train
