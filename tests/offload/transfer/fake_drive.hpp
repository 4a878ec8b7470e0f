#pragma once
// Transfers on a thread of their own, which end when the test likes: in order or not, and only
// while enough of them are in flight.

#include <algorithm>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <random>
#include <thread>
#include <utility>

#include "sluice/base/mutex.hpp"
#include "sluice/base/ticket.hpp"

namespace sluice::offload::test {

enum class DriveOrder { as_begun, random };

// Thread-safe.
class FakeDrive {
 public:
  // Ends a transfer only while at least `least_in_flight` are, until release().
  FakeDrive(DriveOrder order, std::size_t least_in_flight, unsigned seed = 0)
      : order_(order), random_(seed), least_(least_in_flight), thread_([this] { run(); }) {}
  ~FakeDrive() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      least_ = 1;
      changed_.notify_one();
    }
    thread_.join();
  }
  FakeDrive(const FakeDrive&) = delete;
  FakeDrive& operator=(const FakeDrive&) = delete;

  // `transfer` runs when the transfer ends; what it throws is the transfer's error.
  Ticket begin(std::function<void()> transfer) {
    TicketSource source;
    Ticket ticket = source.ticket();
    MutexLock lock(mutex_);
    waiting_.push_back(Item{std::move(transfer), std::move(source)});
    most_in_flight_ = std::max(most_in_flight_, waiting_.size() + running_);
    changed_.notify_one();
    return ticket;
  }
  void release() {
    MutexLock lock(mutex_);
    least_ = 1;
    changed_.notify_one();
  }
  std::size_t most_in_flight() const {
    MutexLock lock(mutex_);
    return most_in_flight_;
  }

 private:
  struct Item {
    std::function<void()> transfer;
    TicketSource done;
  };

  void run() {
    for (;;) {
      Item item;
      {
        MutexLock lock(mutex_);
        while (waiting_.size() < least_ && !(stopping_ && waiting_.empty())) changed_.wait(mutex_);
        if (waiting_.empty()) return;
        const std::size_t at = order_ == DriveOrder::as_begun
                                   ? 0
                                   : static_cast<std::size_t>(random_()) % waiting_.size();
        item = std::move(waiting_[at]);
        waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(at));
        running_ = 1;
      }
      std::exception_ptr error;
      try {
        item.transfer();
      } catch (...) {
        error = std::current_exception();
      }
      {
        MutexLock lock(mutex_);
        running_ = 0;  // before its tile can be used again
      }
      item.done.complete(std::move(error));
    }
  }

  const DriveOrder order_;
  std::mt19937 random_;  // of thread_
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Item> waiting_ SLUICE_GUARDED_BY(mutex_);
  std::size_t running_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::size_t least_ SLUICE_GUARDED_BY(mutex_);
  std::size_t most_in_flight_ SLUICE_GUARDED_BY(mutex_) = 0;
  bool stopping_ SLUICE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace sluice::offload::test
