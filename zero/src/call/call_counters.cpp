#include "sluice/zero/call_counters.hpp"

namespace sluice::zero {

std::uint64_t CommunicatorCounters::sent_bytes() const {
  std::uint64_t sum = 0;
  for (const CallCounts& each : calls) sum += each.sent_bytes;
  return sum;
}

std::uint64_t CommunicatorCounters::received_bytes() const {
  std::uint64_t sum = 0;
  for (const CallCounts& each : calls) sum += each.received_bytes;
  return sum;
}

void CallCounters::add(const CallCounts& one, const std::string& label) {
  std::shared_ptr<const CallObserver> observer;
  {
    MutexLock lock(mutex_);
    CallCounts& all = calls_[{one.operation, one.message_bytes}];
    all.operation = one.operation;
    all.message_bytes = one.message_bytes;
    all.calls += one.calls;
    all.sent_bytes += one.sent_bytes;
    all.received_bytes += one.received_bytes;
    all.seconds += one.seconds;
    observer = observer_;
  }
  if (observer) (*observer)(one, label);
}

void CallCounters::observe(CallObserver observer) {
  MutexLock lock(mutex_);
  observer_ = observer ? std::make_shared<const CallObserver>(std::move(observer)) : nullptr;
}

void CallCounters::add_headers(std::uint64_t size_bytes) {
  header_bytes_.fetch_add(size_bytes, std::memory_order_relaxed);
}

CommunicatorCounters CallCounters::counters() const {
  MutexLock lock(mutex_);
  CommunicatorCounters all;
  all.header_bytes = header_bytes_;
  for (const auto& [key, counts] : calls_) all.calls.push_back(counts);
  return all;
}

}  // namespace sluice::zero
