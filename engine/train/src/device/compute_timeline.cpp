#include "device/compute_timeline.hpp"

#include <optional>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"

namespace sluice::train {

ComputeTimeline::ComputeTimeline(offload::Device& device, Trace* trace)
    : device_(device), row_(device.host_addressable() ? nullptr : trace, "gpu") {}

ComputeTimeline::Span::Span(ComputeTimeline& timeline, std::string_view what,
                            std::string_view subject)
    : timeline_(timeline), what_(what), subject_(subject) {
  if (timeline_.row_.on()) begin_ = timeline_.device_.mark_time();
}

ComputeTimeline::Span::~Span() {
  if (!timeline_.row_.on()) return;
  try {
    timeline_.issued_.push_back(
        {what_, subject_, std::move(begin_), timeline_.device_.mark_time()});
  } catch (
      const std::exception& e) {  // the GPU has failed; the call that it failed in reports that
    log(LogLevel::debug, std::string("a span of the trace is lost: ") + e.what());
  }
}

void ComputeTimeline::flush() {
  while (!issued_.empty()) {
    const Issued& first = issued_.front();
    const auto end = device_.time_of(first.end);
    if (!end) return;
    row_.add(first.what, first.subject, device_.time_of(first.begin).value_or(*end), *end);
    issued_.pop_front();
  }
}

}  // namespace sluice::train
