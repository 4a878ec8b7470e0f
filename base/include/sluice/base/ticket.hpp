#pragma once
// Ticket: asynchronous work that was begun, such as a read. finish() waits and throws its error. A
// `begin_x` that starts work returns a ticket, or its class has the call that waits: `finish_x`.
//
// Drain, then report: the work uses its buffers until the ticket has ended, also after a failure.
// Destroying a pending ticket blocks until the work has ended, and logs an unclaimed error.
//
// Ticket and TicketSource: thread-compatible, one owner each; the two halves may belong to
// different threads.

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

namespace sluice {

namespace detail {
struct TicketState;
}

class Ticket {
 public:
  // An empty ticket: ended, without error.
  Ticket() = default;
  // A ticket of work that has ended already, with `error`; null means success.
  static Ticket ended(std::exception_ptr error);
  Ticket(Ticket&& other) noexcept = default;
  Ticket& operator=(Ticket&& other) noexcept;  // first waits for the work it held
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;
  ~Ticket();

  // Whether the work has ended, with or without an error. Does not block.
  bool done() const;
  // Blocks until the work has ended. Leaves the error for finish().
  void wait() const;
  // Blocks until the work has ended, then throws the work's error. The ticket is empty afterwards.
  void finish();
  // Calls `call` once when the work has ended: at once if it has, else on the thread that ends it,
  // which must not wait for long. Nothing waits for the call, so what it uses outlives the work. An
  // exception from it is logged, and changes nothing.
  // Not for a ticket of join(), which throws InvalidArgument.
  void when_ended(std::function<void()> call) const;

 private:
  friend class TicketSource;
  friend Ticket join(std::vector<Ticket> tickets);
  explicit Ticket(std::shared_ptr<detail::TicketState> state) : state_(std::move(state)) {}
  void abandon() noexcept;
  std::shared_ptr<detail::TicketState> state_;  // shared by the waiter and the worker
};

// The worker's half of a ticket. A source destroyed or assigned to before complete() ends its
// ticket with an Error.
class TicketSource {
 public:
  TicketSource();
  TicketSource(TicketSource&&) noexcept = default;
  TicketSource& operator=(TicketSource&& other) noexcept;
  ~TicketSource();

  // The ticket of this source. Call at most once.
  Ticket ticket();
  // Ends the work with `error`; null means success. Wakes the waiters. A second call
  // throws InvalidArgument.
  void complete(std::exception_ptr error = nullptr);

 private:
  void drop() noexcept;
  std::shared_ptr<detail::TicketState> state_;  // shared by the waiter and the worker
};

// One ticket for all of `tickets`. It ends when all have ended. Its error is that of the first
// failed ticket in the given order.
Ticket join(std::vector<Ticket> tickets);

// Finishes every ticket, also after a failure, then throws the first error. Blocks. `tickets` is
// empty afterwards.
void finish_all(std::vector<Ticket>& tickets);
void finish_all(std::vector<Ticket>&& tickets);
// Whether every ticket has ended. Does not block.
bool all_done(const std::vector<Ticket>& tickets);

}  // namespace sluice
