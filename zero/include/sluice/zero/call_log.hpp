#pragma once
// CallLog: the calls of communicators by operation and size, with latencies and bandwidths, as
// DeepSpeed's comms_logger shows them. CallCounters count always; a CallLog is made where somebody
// asks for the table.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "sluice/base/mutex.hpp"
#include "sluice/zero/call_counters.hpp"
#include "sluice/zero/rank_call.hpp"

namespace sluice::zero {

struct CallLogOptions {
  int ranks = 1;
  std::vector<Operation> operations = {};  // that are logged; empty: all
  bool by_label = false;                   // calls with different labels are told apart
  // Called with a line for each call, under no lock, by the thread that ran the call. Null: no
  // lines.
  std::function<void(const std::string&)> print = {};
};

// Calls of one operation with one size, and with by_label for one purpose.
struct LoggedCalls {
  Operation operation = Operation::barrier;
  std::string label;                // empty without by_label
  std::uint64_t message_bytes = 0;  // as in CallCounts
  std::uint64_t calls = 0;
  double seconds = 0;  // of all of them

  double mean_seconds() const { return seconds / static_cast<double>(calls); }
};

// Bytes per second of a call.
struct CallBandwidth {
  // Message bytes over seconds; twice that for an all-reduce, as DeepSpeed counts it.
  double algorithm = 0;
  // Bytes that the rank's link carries in each direction, by nccl-tests' formulas.
  double bus = 0;
};
// `message_bytes`: the whole tensor, also of all_gather and reduce_scatter. 0 seconds: zeros.
CallBandwidth bandwidth_of(Operation operation, std::uint64_t message_bytes, double seconds,
                           int ranks);

// Thread-safe.
class CallLog {
 public:
  explicit CallLog(CallLogOptions options);
  // For Communicator::observe(). The log outlives the communicator.
  CallObserver observer();
  // By name of the operation, label and size.
  std::vector<LoggedCalls> calls() const;

 private:
  void add(const CallCounts& one, const std::string& label);

  const CallLogOptions options_;
  mutable Mutex mutex_;
  std::map<std::tuple<std::string_view, std::string, std::uint64_t>, LoggedCalls> calls_
      SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::zero
