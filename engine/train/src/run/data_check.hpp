#pragma once
// DataCheck: reads the data files of a run as a whole, once, on a thread of its own beside the
// first steps. It checks every token against the vocabulary and takes a checksum of each file,
// which tells a resumed run whether its data are those it began with.

#include <atomic>
#include <string>
#include <vector>

#include "run/run_inputs.hpp"
#include "sluice/base/ticket.hpp"
#include "sluice/base/worker.hpp"
#include "sluice/models/run_state.hpp"

namespace sluice::train {

// Confined to the thread that trains.
class DataCheck {
 public:
  // Begins to read. `data` outlives it.
  explicit DataCheck(const Data& data);
  ~DataCheck();  // gives up reading; blocks for a moment
  DataCheck(const DataCheck&) = delete;
  DataCheck& operator=(const DataCheck&) = delete;

  bool done() const { return reading_.done(); }
  // Waits for the end, and logs what was read. Returns the checksums as settings of the run. Throws
  // InvalidArgument naming file, token and offset. Call it once.
  models::RunSettings finish();

 private:
  struct File {
    const models::Dataset* data;
    std::string setting;
    std::string checksum = {};
    double seconds = 0;
  };
  void read(File& file);

  std::vector<File> files_;
  std::atomic<bool> stop_ = false;
  Worker worker_;
  Ticket reading_;
};

}  // namespace sluice::train
