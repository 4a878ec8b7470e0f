#pragma once
// A Ticket stands for asynchronous work that was begun: a read, a write, a copy, an update. Every
// `begin_x` of the library returns one; `finish()` is the other half of the pair.
//
// Drain, then report: buffers given to the work stay in use until its ticket has finished, also
// when the work failed. Destroying a pending ticket waits, and logs an error that nobody asked for.
//
// Ticket: thread-compatible, one owner. TicketSource: thread-safe, completes its ticket exactly
// once.

#include <chrono>
#include <exception>
#include <memory>
#include <vector>

namespace sluice {

namespace detail {
struct TicketState;
}

class Ticket {
 public:
  // An empty ticket: finished, without error.
  Ticket() = default;
  Ticket(Ticket&& other) noexcept = default;
  Ticket& operator=(Ticket&& other) noexcept;  // waits for what it held before
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;
  ~Ticket();

  // Whether the work has ended, well or badly. Does not block.
  bool done() const;
  // Blocks until the work has ended. Does not throw, does not take the error.
  void wait() const;
  // Blocks until the work has ended; throws its error, once. The ticket is empty afterwards.
  void finish();

 private:
  friend class TicketSource;
  friend Ticket join(std::vector<Ticket> tickets);
  explicit Ticket(std::shared_ptr<detail::TicketState> state) : state_(std::move(state)) {}
  void abandon() noexcept;
  std::shared_ptr<detail::TicketState> state_;  // shared by the waiter and the worker
};

// The worker's side. A source destroyed before it completed completes with an error.
class TicketSource {
 public:
  TicketSource();
  TicketSource(TicketSource&&) noexcept = default;
  TicketSource& operator=(TicketSource&&) noexcept = default;
  ~TicketSource();

  // The ticket of this source; call once.
  Ticket ticket();
  // Ends the work; null means well. Wakes the waiters.
  void complete(std::exception_ptr error = nullptr);

 private:
  std::shared_ptr<detail::TicketState> state_;  // shared by the waiter and the worker
};

// One ticket for several: it ends when all have ended, and has the error of the first, in their
// order, that failed.
Ticket join(std::vector<Ticket> tickets);

// Finishes all, also after a failure, then throws the first error.
void finish_all(std::vector<Ticket>& tickets);
void finish_all(std::vector<Ticket>&& tickets);
bool all_done(const std::vector<Ticket>& tickets);

// finish_all that adds the seconds it blocked to `stall_seconds`.
void finish_all(std::vector<Ticket>& tickets, double& stall_seconds);

}  // namespace sluice
