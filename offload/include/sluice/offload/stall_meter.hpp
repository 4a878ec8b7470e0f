#pragma once
// StallMeter: how long compute work was idle while the computing thread waited. On the host,
// compute work is idle for the whole wait. On a GPU, it is idle only for the part of the wait after
// previously issued kernels finished, measured with events.

#include <chrono>
#include <string_view>

#include "sluice/base/ticket.hpp"
#include "sluice/base/trace.hpp"
#include "sluice/offload/device.hpp"

namespace sluice::offload {

// Confined to the computing thread; another thread may have a copy of its own.
class StallMeter {
 public:
  // Without a device: measures as on the host, and records no trace.
  StallMeter() = default;
  // `device` outlives the meter. finish() records its stalls in `row`.
  StallMeter(Device& device, const TraceRow& row) : device_(&device), row_(row) {}

  // The time in which compute work was idle.
  struct Stall {
    TraceClock::time_point begin;
    TraceClock::time_point end;
    double seconds() const { return std::chrono::duration<double>(end - begin).count(); }
  };
  // Waits for the ticket. Throws the ticket's error, and CudaError.
  Stall wait(Ticket& ticket) const;
  // Like wait(), but adds the stall to `stall_seconds` and records a stall above zero as
  // "what subject". Throws the ticket's error after that.
  void finish(Ticket& ticket, double& stall_seconds, std::string_view what,
              std::string_view subject) const;

  const TraceRow& row() const { return row_; }

 private:
  Stall wait_only(const Ticket& ticket) const;

  Device* device_ = nullptr;
  TraceRow row_;
};

}  // namespace sluice::offload
