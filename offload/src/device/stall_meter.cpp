#include "sluice/offload/stall_meter.hpp"

#include <algorithm>
#include <optional>

namespace sluice::offload {

StallMeter::Stall StallMeter::wait_only(const Ticket& ticket) const {
  const auto begin = TraceClock::now();
  if (ticket.done()) return {begin, begin};
  const ComputePoint issued = device_ == nullptr ? ComputePoint() : device_->mark_time();
  ticket.wait();
  const auto end = TraceClock::now();
  if (device_ == nullptr) return {begin, end};
  const std::optional<TraceClock::time_point> idle_from = device_->time_of(issued);
  if (!idle_from) return {end, end};
  return {std::clamp(*idle_from, begin, end), end};
}

StallMeter::Stall StallMeter::wait(Ticket& ticket) const {
  const Stall stall = wait_only(ticket);
  ticket.finish();
  return stall;
}

void StallMeter::finish(Ticket& ticket, double& stall_seconds, std::string_view what,
                        std::string_view subject) const {
  const Stall stall = wait_only(ticket);
  if (stall.end > stall.begin) {
    stall_seconds += stall.seconds();
    row_.add(what, subject, stall.begin, stall.end);
  }
  ticket.finish();
}

}  // namespace sluice::offload
