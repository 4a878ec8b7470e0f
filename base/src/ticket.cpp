#include "sluice/base/ticket.hpp"

#include <string>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/mutex.hpp"

namespace sluice {

namespace detail {
struct TicketState {
  Mutex mutex;
  CondVar ended_changed;
  bool ended SLUICE_GUARDED_BY(mutex) = false;
  std::exception_ptr error SLUICE_GUARDED_BY(mutex);
  std::vector<std::function<void()>> calls SLUICE_GUARDED_BY(mutex);  // of when_ended()
  std::vector<Ticket> parts;  // of a joined ticket: all must end; the ticket's owner uses them

  void wait() {
    {
      MutexLock lock(mutex);
      while (!ended) ended_changed.wait(mutex);
    }
    for (const Ticket& part : parts) part.wait();
  }
  bool done() {
    {
      MutexLock lock(mutex);
      if (!ended) return false;
    }
    return all_done(parts);
  }
};
}  // namespace detail

namespace {

// Makes a call of when_ended(): an exception would end the thread that ends work.
void call_at_end(const std::function<void()>& call) noexcept {
  try {
    call();
  } catch (const std::exception& error) {
    log(LogLevel::error, std::string("a call at the end of work failed: ") + error.what());
  } catch (...) {
    log(LogLevel::error, "a call at the end of work failed");
  }
}

}  // namespace

Ticket Ticket::ended(std::exception_ptr error) {
  TicketSource source;
  Ticket ticket = source.ticket();
  source.complete(std::move(error));
  return ticket;
}

Ticket& Ticket::operator=(Ticket&& other) noexcept {
  if (this != &other) {
    abandon();
    state_ = std::move(other.state_);
  }
  return *this;
}

Ticket::~Ticket() {
  abandon();
}

void Ticket::abandon() noexcept {
  if (!state_) return;
  try {
    finish();
  } catch (const std::exception& error) {
    log(LogLevel::warn, std::string("work that nobody waited for failed: ") + error.what());
  } catch (...) {
    log(LogLevel::warn, "work that nobody waited for failed");
  }
}

bool Ticket::done() const {
  return !state_ || state_->done();
}

void Ticket::wait() const {
  if (state_) state_->wait();
}

void Ticket::when_ended(std::function<void()> call) const {
  if (state_) {
    SLUICE_CHECK(state_->parts.empty(), "when_ended() of a joined ticket");
    MutexLock lock(state_->mutex);
    if (!state_->ended) return state_->calls.push_back(std::move(call));
  }
  call_at_end(call);
}

void Ticket::finish() {
  if (!state_) return;
  const auto state = std::exchange(state_, nullptr);
  state->wait();
  std::exception_ptr error;
  {
    MutexLock lock(state->mutex);
    error = std::exchange(state->error, nullptr);
  }
  if (error) std::rethrow_exception(error);
  finish_all(state->parts);
}

Ticket join(std::vector<Ticket> tickets) {
  auto state = std::make_shared<detail::TicketState>();
  {
    MutexLock lock(state->mutex);
    state->ended = true;
  }
  state->parts = std::move(tickets);
  return Ticket(std::move(state));
}

TicketSource::TicketSource() : state_(std::make_shared<detail::TicketState>()) {}

TicketSource& TicketSource::operator=(TicketSource&& other) noexcept {
  if (this != &other) {
    drop();
    state_ = std::move(other.state_);
  }
  return *this;
}

TicketSource::~TicketSource() {
  drop();
}

void TicketSource::drop() noexcept {
  if (state_) complete(std::make_exception_ptr(Error("the work was dropped before it ended")));
}

Ticket TicketSource::ticket() {
  return Ticket(state_);
}

void TicketSource::complete(std::exception_ptr error) {
  const auto state = std::exchange(state_, nullptr);
  SLUICE_CHECK(state != nullptr, "complete() was called before, or its source was moved from");
  // Notify under the lock. The waiter may drop its half once it sees `ended`; this local pointer
  // keeps the state alive until the lock is released.
  std::vector<std::function<void()>> calls;
  {
    MutexLock lock(state->mutex);
    state->ended = true;
    state->error = std::move(error);
    calls.swap(state->calls);
    state->ended_changed.notify_all();
  }
  for (const std::function<void()>& call : calls) call_at_end(call);
}

void finish_all(std::vector<Ticket>& tickets) {
  std::exception_ptr first;
  for (Ticket& ticket : tickets) {
    try {
      ticket.finish();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  tickets.clear();
  if (first) std::rethrow_exception(first);
}

void finish_all(std::vector<Ticket>&& tickets) {
  finish_all(tickets);
}

bool all_done(const std::vector<Ticket>& tickets) {
  for (const Ticket& ticket : tickets) {
    if (!ticket.done()) return false;
  }
  return true;
}

}  // namespace sluice
