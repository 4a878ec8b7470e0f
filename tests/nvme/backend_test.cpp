// The conformance suite of IoBackend: every backend of this build obeys one contract.

#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#if SLUICE_HAVE_AIO
#include <libaio.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <thread>
#include <vector>

#include "nvme_test_support.hpp"
#include "temp_dir.hpp"

#if SLUICE_HAVE_AIO
// This program has its own io_getevents(): so many calls are interrupted by a signal.
namespace {
int interrupted_calls = 0;
}
extern "C" int io_getevents(io_context_t context, long least, long most, io_event* events,
                            timespec* timeout) {
  if (interrupted_calls > 0) {
    --interrupted_calls;
    return -EINTR;
  }
  using Call = int(io_context_t, long, long, io_event*, timespec*);
  static auto* const call = reinterpret_cast<Call*>(::dlsym(RTLD_NEXT, "io_getevents"));
  return call(context, least, most, events, timeout);
}
#endif

namespace sluice::nvme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class IoBackendConformance : public ::testing::TestWithParam<BackendKind> {
 protected:
  void SetUp() override { SLUICE_SKIP_WITHOUT(GetParam()); }

  std::unique_ptr<IoBackend> make(unsigned depth = 8) {
    return make_backend(GetParam(), depth, 2).backend;
  }
  // Reaps until `count` have come; sorted by tag.
  static std::vector<IoCompletion> reap_all(IoBackend& backend, std::size_t count) {
    std::vector<IoCompletion> all;
    while (all.size() < count) {
      std::array<IoCompletion, 3> some;  // fewer than may be available
      const std::size_t n = backend.reap(some);
      all.insert(all.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(n));
      if (n == 0) backend.wait();
    }
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.tag < b.tag; });
    return all;
  }

  test::TempDir dir_;
};

TEST_P(IoBackendConformance, HasTheNameItIsAskedForBy) {
  EXPECT_EQ(make()->name(), name_of(GetParam()));
  EXPECT_EQ(parse_backend(make()->name()), GetParam());
}

TEST_P(IoBackendConformance, MovesBytesBothWaysAtTheirOffsets) {
  const SwapFile file(dir_.file("f"), OpenMode::create, DirectIo::off);
  auto backend = make();
  auto first = random_bytes(1000, 1);
  auto second = random_bytes(3000, 2);
  const std::array<IoRequest, 2> writes{
      IoRequest{IoOp::write, file.fd(), first.data(), 1000, 5000, 7},
      IoRequest{IoOp::write, file.fd(), second.data(), 3000, 100, 8}};
  ASSERT_EQ(backend->submit(writes), 2U);
  const auto written = reap_all(*backend, 2);
  EXPECT_EQ(written[0].tag, 7U);
  EXPECT_EQ(written[0].result, 1000);
  EXPECT_EQ(written[1].tag, 8U);
  EXPECT_EQ(written[1].result, 3000);

  std::vector<std::byte> back(3000);
  const IoRequest read{IoOp::read, file.fd(), back.data(), 3000, 100, 9};
  ASSERT_EQ(backend->submit({&read, 1}), 1U);
  EXPECT_EQ(reap_all(*backend, 1)[0].result, 3000);
  EXPECT_TRUE(same_bytes(back, second));
}

TEST_P(IoBackendConformance, ReportsShortCountsAndZeroAtTheEndOfTheFile) {
  write_whole_file(dir_.file("f"), random_bytes(100, 3));
  const SwapFile file(dir_.file("f"), OpenMode::read_only, DirectIo::off);
  auto backend = make();
  std::vector<std::byte> back(200);
  const std::array<IoRequest, 2> reads{
      IoRequest{IoOp::read, file.fd(), back.data(), 100, 40, 0},
      IoRequest{IoOp::read, file.fd(), back.data() + 100, 100, 100, 1}};
  ASSERT_EQ(backend->submit(reads), 2U);
  const auto done = reap_all(*backend, 2);
  EXPECT_EQ(done[0].result, 60);
  EXPECT_EQ(done[1].result, 0);
}

TEST_P(IoBackendConformance, ReportsFailureAsNegativeErrno) {
  auto backend = make();
  std::byte byte{};
  const IoRequest read{IoOp::read, -1, &byte, 1, 0, 4};
  ASSERT_EQ(backend->submit({&read, 1}), 1U);
  EXPECT_EQ(reap_all(*backend, 1)[0].result, -EBADF);

  const SwapFile file(dir_.file("f"), OpenMode::create, DirectIo::off);
  const SwapFile read_only(dir_.file("f"), OpenMode::read_only, DirectIo::off);
  const IoRequest write{IoOp::write, read_only.fd(), &byte, 1, 0, 5};
  ASSERT_EQ(backend->submit({&write, 1}), 1U);
  EXPECT_EQ(reap_all(*backend, 1)[0].result, -EBADF);
}

// One bad request neither stops nor fails its neighbours.
TEST_P(IoBackendConformance, ABadRequestAmongGoodOnesFailsAlone) {
  const auto bytes = random_bytes(8, 9);
  write_whole_file(dir_.file("f"), bytes);
  const SwapFile file(dir_.file("f"), OpenMode::read_only, DirectIo::off);
  auto backend = make();
  std::vector<std::byte> back(8);
  std::vector<IoRequest> reads;
  for (std::uint32_t i = 0; i < 8; ++i) {
    const bool bad = i == 0 || i == 3 || i == 4 || i == 7;
    reads.push_back({IoOp::read, bad ? -1 : file.fd(), back.data() + i, 1, i, i});
  }
  ASSERT_EQ(backend->submit(reads), 8U);
  EXPECT_EQ(backend->submit(reads), 0U);
  const auto done = reap_all(*backend, 8);
  for (std::uint32_t i = 0; i < 8; ++i) {
    EXPECT_EQ(done[i].tag, i);
    EXPECT_EQ(done[i].result, reads[i].fd < 0 ? -EBADF : 1);
    EXPECT_EQ(back[i], reads[i].fd < 0 ? std::byte{} : bytes[i]);
  }
}

TEST_P(IoBackendConformance, TakesAsManyAsItsDepthUntilTheyAreReaped) {
  const auto bytes = random_bytes(4096, 4);
  write_whole_file(dir_.file("f"), bytes);
  const SwapFile file(dir_.file("f"), OpenMode::read_only, DirectIo::off);
  auto backend = make(5);
  EXPECT_EQ(backend->depth(), 5U);
  std::vector<std::byte> back(8);
  std::vector<IoRequest> reads;
  for (std::uint32_t i = 0; i < 8; ++i) {
    reads.push_back({IoOp::read, file.fd(), back.data() + i, 1, i, i});
  }
  EXPECT_EQ(backend->submit(reads), 5U);
  EXPECT_EQ(backend->submit(reads), 0U);
  reap_all(*backend, 5);
  EXPECT_EQ(backend->submit(std::span(reads).subspan(5)), 3U);
  reap_all(*backend, 3);
  EXPECT_TRUE(same_bytes(back, std::span(bytes).first(8)));
}

TEST_P(IoBackendConformance, ReapReturnsNothingWhenNothingWasSubmitted) {
  auto backend = make();
  std::array<IoCompletion, 4> none;
  EXPECT_EQ(backend->reap(none), 0U);
}

TEST_P(IoBackendConformance, WakeEndsTheNextWaitAndOnlyThat) {
  write_whole_file(dir_.file("f"), random_bytes(16, 5));
  const SwapFile file(dir_.file("f"), OpenMode::read_only, DirectIo::off);
  auto backend = make();
  std::byte byte{};
  std::array<IoCompletion, 1> one;
  for (int round = 0; round < 100; ++round) {
    backend->wake();
    backend->wake();
    backend->wait();
    // A wait that ended early would find no completion here for a while, so the loop is bounded.
    const IoRequest read{IoOp::read, file.fd(), &byte, 1, 0, 1};
    ASSERT_EQ(backend->submit({&read, 1}), 1U);
    while (backend->reap(one) == 0) backend->wait();
    EXPECT_EQ(one[0].result, 1);
  }
}

TEST_P(IoBackendConformance, WakeFromAnotherThreadEndsTheCurrentWait) {
  auto backend = make();
  for (int round = 0; round < 100; ++round) {
    std::thread other([&] { backend->wake(); });
    backend->wait();
    other.join();
  }
}

TEST_P(IoBackendConformance, AWakeTakenWhileReapingIsNotLost) {
  auto backend = make();
  backend->wake();
  backend->wait();
  backend->wake();
  std::array<IoCompletion, 4> none;
  EXPECT_EQ(backend->reap(none), 0U);
  backend->wait();  // would block for ever if reap had swallowed the wake
}

TEST_P(IoBackendConformance, MayBeMadeOnOneThreadAndUsedOnAnother) {
  write_whole_file(dir_.file("f"), random_bytes(64, 6));
  const SwapFile file(dir_.file("f"), OpenMode::read_only, DirectIo::off);
  auto backend = make();
  std::vector<std::byte> back(64);
  std::thread user([&] {
    const IoRequest read{IoOp::read, file.fd(), back.data(), 64, 0, 1};
    ASSERT_EQ(backend->submit({&read, 1}), 1U);
    EXPECT_EQ(reap_all(*backend, 1)[0].result, 64);
  });
  user.join();
  EXPECT_TRUE(same_bytes(back, random_bytes(64, 6)));
}

TEST_P(IoBackendConformance, DestructionWaitsForWhatIsInFlight) {
  const std::string path = dir_.file("f");
  const auto bytes = random_bytes(1U << 20U, 7);
  {
    const SwapFile file(path, OpenMode::create, DirectIo::off);
    auto backend = make();
    auto copy = bytes;
    std::vector<IoRequest> writes;
    for (std::uint64_t i = 0; i < 8; ++i) {
      const std::uint32_t size = 1U << 17U;
      writes.push_back({IoOp::write, file.fd(), copy.data() + i * size, size, i * size, i});
    }
    ASSERT_EQ(backend->submit(writes), 8U);
    backend.reset();
    std::fill(copy.begin(), copy.end(), std::byte{0xEE});  // the memory belongs to the test again
  }
  EXPECT_TRUE(same_bytes(read_whole_file(path), bytes));
}

TEST_P(IoBackendConformance, CarriesThousandsOfRequestsAtFullDepth) {
  const auto bytes = random_bytes(64U << 10U, 8);
  write_whole_file(dir_.file("f"), bytes);
  const SwapFile file(dir_.file("f"), OpenMode::read_only, DirectIo::off);
  auto backend = make(64);
  constexpr std::uint32_t kCount = 4096;
  constexpr std::uint32_t kSize = 16;
  std::vector<std::byte> back(std::size_t{kCount} * kSize);
  std::vector<IoRequest> reads;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    reads.push_back({IoOp::read, file.fd(), back.data() + i * kSize, kSize, i * kSize, i});
  }
  std::size_t submitted = 0;
  std::vector<int> seen(kCount, 0);
  for (std::size_t reaped = 0; reaped < kCount;) {
    submitted += backend->submit(std::span(reads).subspan(submitted));
    std::array<IoCompletion, 32> some;
    const std::size_t n = backend->reap(some);
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_EQ(some[i].result, kSize);
      ++seen[some[i].tag];
    }
    reaped += n;
    if (n == 0) backend->wait();
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), kCount);
  EXPECT_TRUE(same_bytes(back, bytes));
}

#if SLUICE_HAVE_AIO
TEST(LibaioBackend, TakesNothingWhileTheKernelHasNoRoom) {
  SLUICE_SKIP_WITHOUT(BackendKind::libaio);
  EXPECT_EQ(run_in_child([] {
              auto backend = make_backend(BackendKind::libaio, 4, 1).backend;
              deny(__NR_io_submit, EAGAIN);
              std::byte byte{};
              const IoRequest read{IoOp::read, 0, &byte, 1, 0, 1};
              const std::size_t taken = backend->submit({&read, 1});
              IoCompletion none;
              return std::to_string(taken) + " " + std::to_string(backend->reap({&none, 1}));
            }),
            "0 0");
}

TEST(LibaioBackend, SignalsCostNoCompletion) {
  SLUICE_SKIP_WITHOUT(BackendKind::libaio);
  const test::TempDir dir;
  write_whole_file(dir.file("f"), random_bytes(64, 9));
  const SwapFile file(dir.file("f"), OpenMode::read_only, DirectIo::off);
  const auto backend = make_backend(BackendKind::libaio, 4, 1).backend;
  std::vector<std::byte> back(64);
  const IoRequest read{IoOp::read, file.fd(), back.data(), 64, 0, 1};
  ASSERT_EQ(backend->submit({&read, 1}), 1U);
  // Before the eventfd is read, and after it.
  interrupted_calls = 2;
  ::alarm(60);  // a wait for ever ends the program
  IoCompletion done{};
  while (backend->reap({&done, 1}) == 0) backend->wait();
  ::alarm(0);
  EXPECT_EQ(done.result, 64);
  EXPECT_EQ(interrupted_calls, 0);
}
#endif

#if SLUICE_HAVE_URING
TEST(UringBackend, GivesUpAKernelThatTakesNothing) {
  SLUICE_SKIP_WITHOUT(BackendKind::io_uring);
  for (const int error_number : {EAGAIN, EINTR}) {
    SCOPED_TRACE(error_number);
    const std::string said = run_in_child([&] {
      auto backend = make_backend(BackendKind::io_uring, 4, 1).backend;
      std::byte byte{};
      const IoRequest read{IoOp::read, 0, &byte, 1, 0, 1};
      deny(__NR_io_uring_enter, error_number);
      ::alarm(60);  // a wait for ever ends the child
      return message_of<IoError>([&] {
        backend->submit({&read, 1});
        backend->wait();
      });
    });
    EXPECT_THAT(said, AllOf(HasSubstr("io_uring_enter"), HasSubstr(std::strerror(error_number)),
                            HasSubstr("times in a row")));
  }
}

TEST(UringBackend, SaysWhoDeniesItInMidRun) {
  SLUICE_SKIP_WITHOUT(BackendKind::io_uring);
  EXPECT_THAT(run_in_child([] {
                auto backend = make_backend(BackendKind::io_uring, 4, 1).backend;
                deny(__NR_io_uring_enter, EPERM);
                return message_of<IoError>([&] { backend->wait(); });
              }),
              AllOf(HasSubstr("seccomp"), HasSubstr("another backend")));
}
#endif

INSTANTIATE_TEST_SUITE_P(Backends, IoBackendConformance, ::testing::ValuesIn(built_backends()),
                         [](const auto& param_info) { return name_of(param_info.param); });

}  // namespace
}  // namespace sluice::nvme
