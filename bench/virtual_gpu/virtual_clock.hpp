#pragma once
// VirtualClock: the time of a machine that is imitated. It stands while threads of the process run,
// and goes on to the next event when all of them sleep. So code takes no time but that which it
// asks for by occupy() and at(), however busy the real machine is.
//
// A weakness: a thread that waits for something outside of the process, such as a timer, counts as
// asleep.

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "sleeping_threads.hpp"
#include "sluice/base/mutex.hpp"
#include "sluice/base/ticket.hpp"

namespace sluice::bench {

// Something that serves one at a time, in the order of the calls: a link, a memory.
struct VirtualServer {
  double free_at = 0;  // guarded by the clock
};

// Thread-safe.
class VirtualClock {
 public:
  VirtualClock() : thread_([this] { run(); }) {}
  // Lets the events that are left happen.
  ~VirtualClock() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }
  VirtualClock(const VirtualClock&) = delete;
  VirtualClock& operator=(const VirtualClock&) = delete;

  // Seconds since the clock began.
  double now() const {
    MutexLock lock(mutex_);
    return now_;
  }
  // Calls `event` at `seconds`, or now if they have passed, on the clock's thread.
  void at(double seconds, std::function<void()> event) {
    MutexLock lock(mutex_);
    add(seconds, std::move(event));
  }
  // Blocks until `server` has worked for `seconds` after its earlier work.
  void occupy(VirtualServer& server, double seconds) {
    TicketSource done;
    Ticket ended = done.ticket();
    {
      MutexLock lock(mutex_);
      server.free_at = std::max(server.free_at, now_) + seconds;
      add(server.free_at, completing(std::move(done)));
    }
    ended.finish();
  }
  // Gives `server` work for `seconds` after its earlier work, and does not wait.
  void load(VirtualServer& server, double seconds) {
    MutexLock lock(mutex_);
    server.free_at = std::max(server.free_at, now_) + seconds;
  }
  // Blocks until `seconds`.
  void wait_until(double seconds) {
    TicketSource done;
    Ticket ended = done.ticket();
    at(seconds, completing(std::move(done)));
    ended.finish();
  }
  // An event that ends a ticket.
  static std::function<void()> completing(TicketSource done) {
    return [shared = std::make_shared<TicketSource>(std::move(done))] { shared->complete(); };
  }

 private:
  void add(double seconds, std::function<void()> event) SLUICE_REQUIRES(mutex_) {
    events_.emplace(std::max(seconds, now_), std::move(event));
    changed_.notify_all();
  }
  void run() {
    const long self = ::syscall(SYS_gettid);
    while (true) {
      {
        MutexLock lock(mutex_);
        while (events_.empty() && !stopping_) changed_.wait(mutex_);
        if (events_.empty()) return;
      }
      wait_for_sleep(self);
      std::function<void()> event;
      {
        MutexLock lock(mutex_);
        now_ = events_.begin()->first;
        event = std::move(events_.begin()->second);
        events_.erase(events_.begin());
      }
      event();
    }
  }
  // A thread may wake another one between the looks at both, so several looks agree.
  static void wait_for_sleep(long self) {
    constexpr int kLooks = 3;
    for (int asleep = 0; asleep < kLooks;)
      asleep = sluice::test::others_sleep(self) ? asleep + 1 : (std::this_thread::yield(), 0);
  }

  mutable Mutex mutex_;
  CondVar changed_;
  double now_ SLUICE_GUARDED_BY(mutex_) = 0;
  // By time; events of one time in the order of the calls.
  std::multimap<double, std::function<void()>> events_ SLUICE_GUARDED_BY(mutex_);
  bool stopping_ SLUICE_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it starts when all it uses is there
};

}  // namespace sluice::bench
