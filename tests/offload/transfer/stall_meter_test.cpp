// The cost of a wait while compute work continues without the waiting thread.

#include "sluice/offload/stall_meter.hpp"

#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "sluice/base/error.hpp"
#include "temp_dir.hpp"
#include "trace_events.hpp"

namespace sluice::offload {
namespace {

using sluice::test::read_trace;
using sluice::test::TempDir;
using sluice::test::TraceEvent;

TEST(StallMeter, RecordsTheWaitAndThrowsTheError) {
  const TempDir dir;
  const std::string path = dir.file("trace.json");
  double stalled = 0;
  {
    Trace trace(path, Trace::Old::replace);
    const std::unique_ptr<Device> host = make_host_device({});
    const StallMeter meter(*host, TraceRow(&trace, "stalls"));
    TicketSource source;
    Ticket ticket = source.ticket();
    std::thread worker([&] { source.complete(std::make_exception_ptr(Error("late"))); });
    EXPECT_THROW(meter.finish(ticket, stalled, "update", "h.0"), Error);
    worker.join();
    Ticket done;
    meter.finish(done, stalled, "update", "h.1");
  }
  double recorded_us = 0;
  for (const TraceEvent& event : read_trace(path)) {
    EXPECT_EQ(event.name, "update h.0") << "nothing was waited for otherwise";
    recorded_us += event.end_us - event.begin_us;
  }
  EXPECT_NEAR(recorded_us, 1e6 * stalled, 0.01);
}

TEST(StallMeter, AWaitThrowsTheError) {
  const StallMeter meter;
  TicketSource source;
  Ticket ticket = source.ticket();
  source.complete(std::make_exception_ptr(Error("late")));
  EXPECT_THROW(meter.wait(ticket), Error);
}

TEST(StallMeter, OfTheHostCountsAllOfAWait) {
  constexpr std::chrono::milliseconds kWait{20};
  const std::unique_ptr<Device> host = make_host_device({});
  for (const StallMeter& meter : {StallMeter(), StallMeter(*host, {})}) {
    TicketSource source;
    Ticket ticket = source.ticket();
    std::thread worker([&] {
      std::this_thread::sleep_for(kWait);  // the wait that is to be seen
      source.complete();
    });
    const StallMeter::Stall stall = meter.wait(ticket);
    worker.join();
    EXPECT_GE(stall.seconds(), 0.01);
  }
}

}  // namespace
}  // namespace sluice::offload
