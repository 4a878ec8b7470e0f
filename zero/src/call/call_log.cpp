#include "sluice/zero/call_log.hpp"

#include <algorithm>
#include <utility>

#include "sluice/base/text.hpp"

namespace sluice::zero {

CallBandwidth bandwidth_of(Operation operation, std::uint64_t message_bytes, double seconds,
                           int ranks) {
  if (seconds <= 0) return {};
  const double rate = static_cast<double>(message_bytes) / seconds;
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (operation == Operation::all_reduce) return {2 * rate, 2 * rate * others};
  const bool is_sharded =
      operation == Operation::all_gather || operation == Operation::reduce_scatter;
  return {rate, is_sharded ? rate * others : rate};
}

CallLog::CallLog(CallLogOptions options) : options_(std::move(options)) {}

CallObserver CallLog::observer() {
  return [this](const CallCounts& one, const std::string& label) { add(one, label); };
}

std::vector<LoggedCalls> CallLog::calls() const {
  MutexLock lock(mutex_);
  std::vector<LoggedCalls> all;
  for (const auto& [key, calls] : calls_) all.push_back(calls);
  return all;
}

void CallLog::add(const CallCounts& one, const std::string& label) {
  const std::vector<Operation>& logged = options_.operations;
  if (!logged.empty() && std::ranges::find(logged, one.operation) == logged.end()) return;
  const std::string_view name = name_of(one.operation);
  const std::string shown_label = options_.by_label ? label : "";
  {
    MutexLock lock(mutex_);
    LoggedCalls& all = calls_[{name, shown_label, one.message_bytes}];
    all.operation = one.operation;
    all.label = shown_label;
    all.message_bytes = one.message_bytes;
    all.calls += one.calls;
    all.seconds += one.seconds;
  }
  if (!options_.print) return;
  const CallBandwidth bandwidth =
      bandwidth_of(one.operation, one.message_bytes, one.seconds, options_.ranks);
  options_.print("comm op: " + std::string(name) +
                 (shown_label.empty() ? "" : " of " + shown_label) +
                 format_number(" | time (ms): %.2f", 1e3 * one.seconds) +
                 " | msg size: " + format_bytes(one.message_bytes) +
                 format_number(" | algbw (Gbps): %.2f", 8e-9 * bandwidth.algorithm) +
                 format_number(" | busbw (Gbps): %.2f", 8e-9 * bandwidth.bus));
}

}  // namespace sluice::zero
