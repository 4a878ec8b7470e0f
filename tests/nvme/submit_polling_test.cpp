// io_uring with a kernel thread that polls for requests gives equal results.

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <thread>

#include "nvme_test_support.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "temp_dir.hpp"

namespace sluice::nvme {
namespace {

class SubmitPollingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (!io_uring_available(why)) GTEST_SKIP() << why;
  }
  static std::unique_ptr<IoBackend> polled(unsigned depth) {
    return make_backend(BackendKind::io_uring, depth, 1, SubmitPolling::on).backend;
  }
};

// Every queue depth: a queue of one has the fewest entries for requests that the kernel has not
// taken.
TEST_F(SubmitPollingTest, HoldsWhatWasWritten) {
  const sluice::test::TempDir dir;
  for (const unsigned depth : {1U, 3U, 32U}) {
    SwapFile file(dir.file("data"), OpenMode::create, DirectIo::automatic);
    constexpr std::uint64_t kSize = 1U << 20U;
    file.allocate(kSize);
    IoEngine engine(polled(depth), {4096, depth});
    std::mt19937_64 random(depth);
    std::vector<std::byte> model(kSize);
    for (std::byte& byte : model) byte = static_cast<std::byte>(random());
    const Registration registered = engine.register_memory(model);
    engine.begin_write(file, 0, model).finish();
    std::vector<Ticket> tickets;
    std::vector<std::vector<std::byte>> back(200);
    std::vector<std::uint64_t> offsets;
    for (auto& bytes : back) {
      offsets.push_back(random() % (kSize - 9000));
      bytes.resize(1 + random() % 9000);
      tickets.push_back(engine.begin_read(file, offsets.back(), bytes));
    }
    finish_all(tickets);
    for (std::size_t i = 0; i < back.size(); ++i)
      ASSERT_TRUE(same_bytes(back[i], std::span(model).subspan(offsets[i], back[i].size())));
  }
}

// The kernel's thread sleeps meanwhile.
TEST_F(SubmitPollingTest, GoesOnAfterAPause) {
  const sluice::test::TempDir dir;
  SwapFile file(dir.file("data"), OpenMode::create, DirectIo::automatic);
  file.allocate(8192);
  IoEngine engine(polled(4), {4096, 4});
  std::vector<std::byte> bytes(8192);
  for (int i = 0; i < 3; ++i) {
    engine.begin_read(file, 0, bytes).finish();
    std::this_thread::sleep_for(std::chrono::milliseconds(30));  // longer than the thread polls
  }
  Ticket dropped = engine.begin_read(file, 0, bytes);
}

TEST(SubmitPolling, IsIoUringsAlone) {
  for (const BackendKind kind : {BackendKind::libaio, BackendKind::threads}) {
    EXPECT_THROW(make_backend(kind, 4, 1, SubmitPolling::on), InvalidArgument);
  }
}

}  // namespace
}  // namespace sluice::nvme
