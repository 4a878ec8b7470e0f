#pragma once
// CallCounters: the calls of a communicator by operation and size, with their bytes and seconds.
// The numbers of comms_logger and of reports come from here.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sluice/base/mutex.hpp"
#include "sluice/zero/rank_call.hpp"

namespace sluice::zero {

// Calls of one operation with one size, which ended without an error.
struct CallCounts {
  Operation operation = Operation::barrier;
  std::uint64_t message_bytes = 0;  // size of the call's larger buffer on this rank
  std::uint64_t calls = 0;
  // Payload between this rank and the others; what stays on the rank is not counted.
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
  // From the start of the call on this rank, once it is its turn, to its end: waiting for the
  // others is part of it.
  double seconds = 0;
};

struct CommunicatorCounters {
  std::vector<CallCounts> calls;  // by operation, then by size
  // Sent by this rank: the headers that tell the other ranks about its calls.
  std::uint64_t header_bytes = 0;

  std::uint64_t sent_bytes() const;
  std::uint64_t received_bytes() const;
};

// Told of each call that has ended without an error, with its label, on the thread that ran it. It
// makes no call over ranks, and throws nothing: an exception from it would be the call's error.
using CallObserver = std::function<void(const CallCounts& one, const std::string& label)>;

// Thread-safe.
class CallCounters {
 public:
  // Adds `one`, of one call (`calls` is 1), and tells the observer.
  void add(const CallCounts& one, const std::string& label);
  // Replaces the observer.
  void observe(CallObserver observer);
  void add_headers(std::uint64_t size_bytes);
  CommunicatorCounters counters() const;

 private:
  mutable Mutex mutex_;
  std::map<std::pair<Operation, std::uint64_t>, CallCounts> calls_ SLUICE_GUARDED_BY(mutex_);
  // Shared with the calls in flight, which use it without the lock. Null: none.
  std::shared_ptr<const CallObserver> observer_ SLUICE_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> header_bytes_{0};
};

}  // namespace sluice::zero
