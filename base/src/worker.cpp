#include "sluice/base/worker.hpp"

#include <exception>
#include <optional>
#include <utility>

#include "sluice/base/error.hpp"

namespace sluice {

Worker::Worker(const std::string& name, ThreadPriority priority)
    : forks_(fork_count()), thread_(start_thread(name, [this, priority] {
        take_priority(priority);
        run();
      })) {}

Worker::~Worker() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

Ticket Worker::begin(std::function<void()> task) {
  SLUICE_CHECK(forks_ == fork_count(),
               "a thread that was made before a fork works in the parent process only");
  TicketSource source;
  Ticket ticket = source.ticket();
  MutexLock lock(mutex_);
  queue_.push_back(Item{std::move(task), std::move(source)});
  changed_.notify_one();
  return ticket;
}

void Worker::run() {
  for (;;) {
    std::optional<Item> item;  // an Item of its own would allocate, and this thread has no caller
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !stopping_) changed_.wait(mutex_);
      if (queue_.empty()) return;
      item = std::move(queue_.front());
      queue_.pop_front();
    }
    std::exception_ptr error;
    try {
      item->task();
    } catch (...) {
      error = std::current_exception();
    }
    item->task = nullptr;  // frees the task's captures before its ticket ends
    item->done.complete(std::move(error));
  }
}

}  // namespace sluice
