// The CUDA device over FakeCuda: order of copies and compute work, errors at once and late, memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cuda/cuda_device.hpp"
#include "cuda/cuda_memory.hpp"
#include "fake_cuda.hpp"
#include "offload/device/device_conformance.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/offload/stall_meter.hpp"

namespace sluice::offload {

using test::FakeCuda;
using test::filled;
using test::Gate;
using test::message_of;
using testing::HasSubstr;

namespace test {
INSTANTIATE_TEST_SUITE_P(FakeCuda, DeviceConformance,
                         testing::Values(DeviceCase{
                             "cuda",
                             [](std::uint64_t memory_bytes, std::string&) {
                               return std::shared_ptr<Device>(cuda::make_device(
                                   std::make_shared<FakeCuda>(), {.memory_bytes = memory_bytes}));
                             }}),
                         name_of_case);
}  // namespace test

namespace {

constexpr std::size_t kBytes = 10000;

class CudaDevice : public testing::Test {
 protected:
  CudaDevice() {
    EXPECT_EQ(api->stream_create(&compute, 0), cudaSuccess);
    device = make();
    a = device->memory().allocate(kBytes, "a");
  }
  ~CudaDevice() override {
    a.reset();
    device.reset();
    // Says an error that a test has made.
    static_cast<void>(api->stream_destroy(compute));
  }
  std::unique_ptr<Device> make() {
    return cuda::make_device(api, {.memory_bytes = 1U << 20U, .compute_stream = compute});
  }
  // A kernel that fills `buffer`, when `gate` is open.
  void fill(const Buffer& buffer, int value, const Gate& gate) {
    api->launch(compute, [this, bytes = buffer.device_span(), value, wait = gate.waiter()] {
      wait();
      std::memset(api->as_device(bytes.address()), value, bytes.size_bytes());
    });
  }

  const std::shared_ptr<FakeCuda> api = std::make_shared<FakeCuda>();
  cudaStream_t compute = nullptr;
  std::unique_ptr<Device> device;
  Buffer a;
};

TEST_F(CudaDevice, HasMemoryThatTheHostDoesNotTouch) {
  EXPECT_EQ(device->name(), "cuda:0 Fake GPU");
  EXPECT_FALSE(device->host_addressable());
  EXPECT_DEATH(*static_cast<std::byte*>(a.device_span().address()) = std::byte{1}, "");
}

TEST_F(CudaDevice, CopiesOutWhatComputeWorkIssuedBeforeWillHaveWritten) {
  Gate gate;
  fill(a, 7, gate);
  auto to = filled(kBytes, 0);
  Ticket out = device->begin_copy_out(to, a.device_span());
  EXPECT_FALSE(out.done());
  gate.open();
  out.finish();
  EXPECT_EQ(to, filled(kBytes, 7));
}

TEST_F(CudaDevice, StandsStillOnlyFromWhereItsWorkHasEnded) {
  const StallMeter meter(*device, {});
  Gate work;
  fill(a, 7, work);
  // The ticket has finished before the work that was issued: the GPU lost nothing.
  TicketSource early;
  Ticket ticket = early.ticket();
  std::thread completes([&] { early.complete(); });
  EXPECT_EQ(meter.wait(ticket).seconds(), 0);
  completes.join();
  // It ends while a ticket is waited for: only the rest of that wait is lost.
  TicketSource late;
  Ticket second = late.ticket();
  constexpr std::chrono::milliseconds kPart{30};
  std::thread goes_on([&] {
    std::this_thread::sleep_for(kPart);  // the GPU computes
    work.open();
    std::this_thread::sleep_for(kPart);  // it stands still
    late.complete();
  });
  const auto begin = std::chrono::steady_clock::now();
  const StallMeter::Stall stall = meter.wait(second);
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
  goes_on.join();
  EXPECT_GE(stall.seconds(), 0.02);
  EXPECT_LE(stall.seconds(), waited.count() - 0.02);
}

TEST_F(CudaDevice, ReadsItsClockAgainWhereTheHostWokeLate) {
  constexpr std::chrono::milliseconds kLate{200};
  int late_waits = 3;
  api->after_event = [&] {
    if (late_waits-- > 0) std::this_thread::sleep_for(kLate);
  };
  const std::unique_ptr<Device> on_busy_host = make();
  const ComputePoint point = on_busy_host->mark_time();
  on_busy_host->begin_copy_in(a.device_span(), filled(kBytes, 9), point).finish();
  const auto reached = on_busy_host->time_of(point);
  ASSERT_TRUE(reached.has_value());
  EXPECT_LE(*reached, std::chrono::steady_clock::now() + kLate / 4);
  EXPECT_LE(late_waits, 0);
}

TEST_F(CudaDevice, TellsThatItsClockCannotBeRead) {
  const ComputePoint point = device->mark_time();
  api->fail("event_query", 1, cudaErrorIllegalAddress);
  EXPECT_THROW(static_cast<void>(device->time_of(point)), CudaError);
}

TEST_F(CudaDevice, RunsAWorkBesideItsComputeWorkAndAfterItsPoint) {
  Gate before;
  Gate behind;
  fill(a, 7, before);
  const ComputePoint point = device->mark_compute();
  const Buffer other = device->memory().allocate(kBytes, "other");
  fill(other, 1, behind);
  Ticket work = device->begin_work(
      {"add one",
       [&](void* stream) {
         api->launch(static_cast<cudaStream_t>(stream), [&] {
           auto* value = static_cast<std::byte*>(api->as_device(a.device_span().address()));
           *value = std::byte(std::to_integer<int>(*value) + 1);
         });
       },
       {a.device_span()}},
      point);
  EXPECT_FALSE(work.done());
  before.open();
  work.finish();  // and not behind the work that was issued after the point
  auto to = filled(kBytes, 0);
  device->begin_copy_out(to, a.device_span(), {}).finish();
  EXPECT_EQ(to.front(), std::byte{8});
  EXPECT_EQ(to.back(), std::byte{7});
  behind.open();
}

TEST_F(CudaDevice, TellsTheTicketOfAWorkThatCannotBeRecorded) {
  api->fail("event_record", 2, cudaErrorIllegalAddress);
  Ticket work = device->begin_work({"update", [](void*) {}, {}}, {});
  EXPECT_THAT(message_of([&] { work.finish(); }), HasSubstr("update on the GPU"));
}

TEST_F(CudaDevice, CopiesIntoMemoryOnlyWhenItsLastUseHasEnded) {
  Gate last_use;
  Gate other_work;
  fill(a, 7, last_use);
  const ComputePoint unused = device->mark_compute();
  const Buffer b = device->memory().allocate(kBytes, "b");
  fill(b, 8, other_work);
  const auto from = filled(kBytes, 9);
  Ticket in = device->begin_copy_in(a.device_span(), from, unused);
  EXPECT_FALSE(in.done());
  last_use.open();
  in.finish();  // does not wait for the work behind the point
  auto to = filled(kBytes, 0);
  device->begin_copy_out(to, a.device_span(), unused).finish();
  EXPECT_EQ(to, from);
  other_work.open();
}

TEST_F(CudaDevice, APointStaysWhereItWasWhenItsEventIsUsedAgain) {
  Gate first;
  Gate second;
  fill(a, 1, first);
  auto to = filled(kBytes, 0);
  Ticket out = device->begin_copy_out(to, a.device_span(), device->mark_compute());
  const Buffer b = device->memory().allocate(kBytes, "b");
  fill(b, 2, second);
  const int events = api->calls("event_create");
  const ComputePoint later = device->mark_compute();  // takes the event of the point that is gone
  EXPECT_EQ(api->calls("event_create"), events);
  first.open();
  out.finish();
  EXPECT_EQ(to, filled(kBytes, 1));
  second.open();
}

TEST_F(CudaDevice, CopiesBothWaysAtTheSameTime) {
  Gate gate;
  fill(a, 7, gate);
  auto to = filled(kBytes, 0);
  Ticket out = device->begin_copy_out(to, a.device_span());
  const Buffer b = device->memory().allocate(kBytes, "b");
  const auto from = filled(kBytes, 3);
  device->begin_copy_in(b.device_span(), from, ComputePoint()).finish();
  EXPECT_FALSE(out.done());
  gate.open();
  out.finish();
}

// As an update does during backward: its tiles must not wait for a gradient of a later unit.
TEST_F(CudaDevice, ACopyWithNothingToWaitForPassesTheOnesThatWait) {
  const Buffer b = device->memory().allocate(kBytes, "b");
  const Buffer c = device->memory().allocate(kBytes, "c");
  const auto from = filled(kBytes, 3);
  auto to = filled(kBytes, 0);
  Gate gate;
  fill(a, 7, gate);
  Ticket out = device->begin_copy_out(to, a.device_span());
  Ticket in = device->begin_copy_in(c.device_span(), from);
  device->begin_copy_in(b.device_span(), from, ComputePoint()).finish();
  auto now = filled(kBytes, 0);
  device->begin_copy_out(now, b.device_span(), ComputePoint()).finish();
  EXPECT_EQ(now, from);
  EXPECT_FALSE(out.done());
  EXPECT_FALSE(in.done());
  gate.open();
  in.finish();
  out.finish();
  const CopyCounters counters = device->counters();
  EXPECT_EQ(counters.in_bytes, 2 * kBytes);
  EXPECT_EQ(counters.out_bytes, 2 * kBytes);
}

TEST_F(CudaDevice, KnowsWhetherAPointHasPassed) {
  EXPECT_TRUE(device->has_passed({}));
  Gate gate;
  fill(a, 7, gate);
  const ComputePoint point = device->mark_compute();
  EXPECT_FALSE(device->has_passed(point));
  EXPECT_FALSE(device->time_of(device->mark_time()).has_value());
  EXPECT_EQ(FakeCuda::last_error(), cudaSuccess);  // LibTorch asks after its own kernels
  gate.open();
  auto to = filled(kBytes, 0);
  device->begin_copy_out(to, a.device_span(), point).finish();
  EXPECT_TRUE(device->has_passed(point));
  api->fail("event_query", 1, cudaErrorIllegalAddress);
  EXPECT_FALSE(device->has_passed(point));
}

// LibTorch computes on the default stream, and a thread of the user's that was told of no stream
// copies on it: what such a thread has issued is compute work as well.
TEST_F(CudaDevice, WaitsForWhatOtherThreadsIssueToTheStreamThatComputes) {
  const auto on_default =
      cuda::make_device(api, {.memory_bytes = 1U << 20U, .compute_stream = nullptr});
  const Buffer b = on_default->memory().allocate(kBytes, "b");
  const auto from = filled(kBytes, 5);
  Gate gate;
  std::thread([&] {
    api->launch(nullptr, gate.waiter());
    EXPECT_EQ(api->memcpy_async(b.device_span().address(), from.data(), kBytes,
                                cudaMemcpyHostToDevice, nullptr),
              cudaSuccess);
  }).join();
  auto to = filled(kBytes, 0);
  Ticket out = on_default->begin_copy_out(to, b.device_span());
  EXPECT_FALSE(out.done());
  gate.open();
  out.finish();
  EXPECT_EQ(to, from);
}

TEST_F(CudaDevice, MakesNoMoreEventsThanAreInUse) {
  const auto from = filled(kBytes, 3);
  for (int i = 0; i < 100; ++i) device->begin_copy_in(a.device_span(), from).finish();
  // A point, and begin and end of a copy whose events may still be on their way back.
  EXPECT_LE(api->calls("event_create"), 6);
}

TEST_F(CudaDevice, TellsTheCopyWhoseCallFailedAndGoesOn) {
  const auto from = filled(kBytes, 3);
  for (const char* function : {"stream_wait_event", "event_record", "memcpy_async"}) {
    const ComputePoint point = device->mark_compute();
    api->fail(function, 1, cudaErrorInvalidValue);
    Ticket in = device->begin_copy_in(a.device_span(), from, point);
    EXPECT_THAT(message_of([&] { in.finish(); }),
                testing::AllOf(HasSubstr("copying 9.77 KiB to the GPU"), HasSubstr(function),
                               HasSubstr("a fault of the test (cudaError1)")));
    device->begin_copy_in(a.device_span(), from).finish();
  }
}

TEST_F(CudaDevice, DrainsTheStreamBeforeItTellsOfAFailure) {
  Gate gate;
  bool copied = false;
  api->before_copy = [&copied, wait = gate.waiter()] {
    wait();
    copied = true;
  };
  // The copy is on the stream, and what should say when it has ended cannot be.
  api->fail("event_record", 2, cudaErrorInvalidValue);
  const auto from = filled(kBytes, 3);
  Worker opener("opener");
  Ticket opened = opener.begin([&] { gate.open(); });
  Ticket in = device->begin_copy_in(a.device_span(), from, ComputePoint());
  EXPECT_THROW(in.finish(), CudaError);
  EXPECT_TRUE(copied);
  opened.finish();
}

TEST_F(CudaDevice, TellsOfErrorsThatComeLate) {
  const auto from = filled(kBytes, 3);
  device->begin_copy_in(a.device_span(), from).finish();
  Gate gate;
  api->before_copy = gate.waiter();
  api->break_at_next_copy();
  Ticket broken = device->begin_copy_in(a.device_span(), from);
  gate.open();  // all calls of the copy have been made
  try {
    broken.finish();
    FAIL() << "the device was broken";
  } catch (const CudaError& e) {
    EXPECT_EQ(e.code(), cudaErrorIllegalAddress);
    EXPECT_THAT(e.what(), HasSubstr("event_synchronize"));
  }
  EXPECT_THROW(device->mark_compute(), CudaError);
  EXPECT_THROW(device->begin_copy_in(a.device_span(), from, ComputePoint()).finish(), CudaError);
  EXPECT_EQ(device->counters().in_bytes, kBytes);  // what failed is not counted
}

TEST_F(CudaDevice, TakesItsMemoryOnce) {
  const int before = api->calls("malloc");
  for (int i = 0; i < 7; ++i) const Buffer b = device->memory().allocate(5000U << i, "b");
  EXPECT_EQ(api->calls("malloc"), before);
  EXPECT_EQ(api->used_bytes(), 1U << 20U);
  a.reset();
  device.reset();
  EXPECT_EQ(api->used_bytes(), 0U);
}

TEST(MakeCudaDevice, SaysHowMuchMemoryIsFreeWhenTheBudgetIsMore) {
  const auto api = std::make_shared<FakeCuda>();
  void* others = nullptr;
  ASSERT_EQ(api->malloc(&others, 1U << 20U), cudaSuccess);
  try {
    cuda::make_device(api, {.memory_bytes = FakeCuda::kMemoryBytes});
    FAIL() << "there is less";
  } catch (const OutOfMemory& e) {
    EXPECT_EQ(e.tier(), "device");
    EXPECT_EQ(e.requested_bytes(), FakeCuda::kMemoryBytes);
    EXPECT_EQ(e.available_bytes(), FakeCuda::kMemoryBytes - (1U << 20U));
    EXPECT_THAT(e.what(), HasSubstr("nvidia-smi"));
  }
}

TEST(MakeCudaDevice, GivesEverythingBackWhicheverCallFails) {
  for (const char* function : {"set_device", "malloc", "stream_create"}) {
    for (int nth = 1; nth <= 4; ++nth) {
      if (std::string(function) == "malloc" && nth > 1) continue;      // there is one
      if (std::string(function) == "set_device" && nth > 2) continue;  // threads of copies, later
      const auto api = std::make_shared<FakeCuda>();
      api->fail(function, nth, cudaErrorUnknown);
      EXPECT_THROW(cuda::make_device(api, {.memory_bytes = 1U << 20U}), CudaError) << function;
      EXPECT_EQ(api->used_bytes(), 0U) << function;
    }
  }
}

TEST(LetCudaWaitsSleep, AsksTheRuntimeAndTakesNoForAnAnswer) {
  FakeCuda api;
  cuda::let_waits_sleep(api, 0);
  EXPECT_EQ(api.device_flags, unsigned{cudaDeviceScheduleBlockingSync});
  EXPECT_THROW(cuda::let_waits_sleep(api, 1), CudaError);
  FakeCuda old;
  old.fail("set_device_flags", 1, cudaErrorSetOnActiveProcess);
  EXPECT_NO_THROW(cuda::let_waits_sleep(old, 0));
  EXPECT_EQ(old.device_flags, 0U);
}

TEST(MakeCudaDevice, NamesTheGpusWhenTheIndexIsNone) {
  for (const int index : {-1, 1}) {
    EXPECT_THAT(
        message_of([&] {
          cuda::make_device(std::make_shared<FakeCuda>(), {.index = index, .memory_bytes = 1});
        }),
        HasSubstr("there is no GPU " + std::to_string(index) + ": 1 is visible, counted from 0"));
  }
}

}  // namespace
}  // namespace sluice::offload
