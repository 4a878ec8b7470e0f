#pragma once
// ComputeTimeline: spans of a GPU's work in the trace. A GPU runs its work later than the calls
// that issue it. The host device does not, so nothing is recorded for it here. Not installed.

#include <deque>
#include <string_view>

#include "sluice/base/trace.hpp"
#include "sluice/offload/device.hpp"

namespace sluice::train {

// Confined to the thread that computes.
class ComputeTimeline {
 public:
  // `trace` may be null. Both outlive it.
  ComputeTimeline(offload::Device& device, Trace* trace);

  // Covers the work that is issued while it lives. The texts outlive the timeline's next flush.
  class Span {
   public:
    Span(ComputeTimeline& timeline, std::string_view what, std::string_view subject);
    ~Span();
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    ComputeTimeline& timeline_;
    const std::string_view what_;
    const std::string_view subject_;
    offload::ComputePoint begin_;
  };
  // Records the spans whose work has ended.
  void flush();

 private:
  struct Issued {
    std::string_view what;
    std::string_view subject;
    offload::ComputePoint begin;
    offload::ComputePoint end;
  };

  offload::Device& device_;
  const TraceRow row_;
  std::deque<Issued> issued_;
};

}  // namespace sluice::train
