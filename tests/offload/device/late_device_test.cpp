// LateDevice finds each kind of missing wait, and nothing in work whose order is right.

#include "late_device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device_conformance.hpp"
#include "sluice/offload/mover.hpp"

namespace sluice::offload::test {

INSTANTIATE_TEST_SUITE_P(Late, DeviceConformance,
                         testing::Values(DeviceCase{"late",
                                                    [](std::uint64_t memory_bytes, std::string&) {
                                                      return std::make_shared<LateDevice>(
                                                          LateOptions{.memory_bytes = memory_bytes,
                                                                      .seed = 3});
                                                    }}),
                         name_of_case);

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::size_t kBytes = 1024;

// Nothing ends before the test's thread waits for something.
class LateDeviceTest : public testing::Test {
 protected:
  void write(const Buffer& buffer) { use("write", buffer, true); }
  void read(const Buffer& buffer) { use("read", buffer, false); }
  void use(const char* what, const Buffer& buffer, bool writes) {
    device.issue(what, {{buffer.device_span().address(), buffer.size_bytes(), writes}});
  }

  LateDevice device{{.compute_last = true}};
  std::vector<std::byte> host = filled(kBytes, 7);
  Buffer a = device.memory().allocate(kBytes, "a");
};

TEST_F(LateDeviceTest, FindsACopyThatDoesNotWaitForTheWorkThatMakesItsSource) {
  const ComputePoint early = device.mark_compute();
  write(a);
  device.begin_copy_out(host, a.device_span(), early).finish();
  EXPECT_THAT(device.violations(), ElementsAre(HasSubstr("does not wait for write")));
}

TEST_F(LateDeviceTest, FindsACopyIntoMemoryThatEarlierWorkReads) {
  read(a);
  device.begin_copy_in(a.device_span(), host, {}).finish();
  EXPECT_THAT(device.violations(), ElementsAre(HasSubstr("does not wait for read")));
}

// The block belongs to somebody else, but work on the device still uses it.
TEST_F(LateDeviceTest, FindsACopyIntoMemoryThatWorkUsedBeforeItWasFreed) {
  write(a);
  const DeviceSpan before = a.device_span();
  a.reset();
  const Buffer next = device.memory().allocate(kBytes, "next");
  ASSERT_EQ(next.device_span(), before);
  device.begin_copy_in(next.device_span(), host, {}).finish();
  EXPECT_THAT(device.violations(), ElementsAre(HasSubstr("does not wait for write")));
}

TEST_F(LateDeviceTest, FindsWorkThatUsesWhatACopyHasNotBroughtYet) {
  Ticket copy = device.begin_copy_in(a.device_span(), host);
  read(a);
  copy.finish();
  EXPECT_THAT(device.violations(), ElementsAre(HasSubstr("read uses memory of a copy in")));
}

TEST_F(LateDeviceTest, FindsWorkThatOverwritesWhatACopyHasNotReadYet) {
  write(a);
  Ticket copy = device.begin_copy_out(host, a.device_span());
  write(a);
  copy.finish();
  EXPECT_THAT(device.violations(), ElementsAre(HasSubstr("write uses memory of a copy out")));
}

TEST_F(LateDeviceTest, FindsMemoryThatIsFreedUnderACopy) {
  Ticket copy = device.begin_copy_in(a.device_span(), host);
  a.reset();
  copy.finish();
  EXPECT_THAT(device.violations(), ElementsAre(HasSubstr("is freed")));
}

TEST_F(LateDeviceTest, FindsTwoCopiesThatNothingOrders) {
  std::vector<std::byte> to(kBytes);
  Ticket in = device.begin_copy_in(a.device_span(), host);
  Ticket out = device.begin_copy_out(to, a.device_span());
  in.finish();
  out.finish();
  EXPECT_THAT(device.violations().front(), HasSubstr("a copy out"));
  EXPECT_THAT(device.violations().front(), HasSubstr("copy in"));
}

TEST_F(LateDeviceTest, FindsASourceThatChangesAndATargetThatIsWritten) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "this test races on purpose, which ThreadSanitizer finds too";
#endif
  Ticket in = device.begin_copy_in(a.device_span(), host);
  host[5] = std::byte{8};
  in.finish();
  EXPECT_THAT(device.violations(), ElementsAre(HasSubstr("has changed before it ran")));
  Ticket out = device.begin_copy_out(host, a.device_span());
  host[5] = std::byte{9};
  out.finish();
  EXPECT_THAT(device.violations().back(), HasSubstr("was written before it ran"));
}

TEST_F(LateDeviceTest, ShowsNoBytesBeforeACopyHasRun) {
  device.begin_copy_in(a.device_span(), host).finish();
  std::vector<std::byte> to(kBytes);
  Ticket out = device.begin_copy_out(to, a.device_span());
  EXPECT_EQ(to, filled(kBytes, 0xFF));
  out.finish();
  EXPECT_EQ(to, host);
  EXPECT_THAT(device.violations(), IsEmpty());
}

TEST_F(LateDeviceTest, FindsNothingWhereWaitsAreRight) {
  std::vector<std::byte> to(kBytes);
  write(a);
  device.begin_copy_out(to, a.device_span()).finish();
  write(a);
  Ticket in = device.begin_copy_in(a.device_span(), host);
  in.finish();
  read(a);
  // Two copies of one queue are in order.
  Ticket first = device.begin_copy_in(a.device_span(), host);
  Ticket second = device.begin_copy_in(a.device_span(), host);
  first.finish();
  second.finish();
  // A copy that has ended tells what its point tells.
  device.begin_copy_out(to, a.device_span()).finish();
  device.begin_copy_in(a.device_span(), host, {}).finish();
  // So does reading a result.
  write(a);
  device.synchronize();
  device.begin_copy_out(to, a.device_span(), {}).finish();
  EXPECT_THAT(device.violations(), IsEmpty());
}

TEST_F(LateDeviceTest, LetsACopyWithNothingToWaitForPassThoseThatWait) {
  const Buffer b = device.memory().allocate(kBytes, "b");
  const ComputePoint before = device.mark_time();
  write(a);
  const ComputePoint written = device.mark_time();
  std::vector<std::byte> to(kBytes);
  Ticket waits = device.begin_copy_out(to, a.device_span(), written);
  std::vector<std::byte> now(kBytes);
  device.begin_copy_out(now, b.device_span(), {}).finish();
  EXPECT_TRUE(device.time_of(before).has_value());
  EXPECT_FALSE(device.time_of(written).has_value());
  EXPECT_FALSE(waits.done());
  waits.finish();
  EXPECT_TRUE(device.time_of(written).has_value());
  EXPECT_THAT(device.violations(), IsEmpty());
}

}  // namespace
}  // namespace sluice::offload::test
