// Killed at any moment, failing at any write: the last committed step is there, whole.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <ctime>
#include <filesystem>

#include "nvme/faulty_backend.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "soft_limit.hpp"
#include "swap_test_support.hpp"

namespace sluice::offload::test {
namespace {

using ::testing::HasSubstr;

std::vector<ShardSpec> small_shards() {
  return {{"weights", kChecksumChunkBytes + 5}, {"moments", 70'000}, {"bias", 100}};
}

using Clock = std::chrono::steady_clock;

// The kernel kills this process after `delay`, whatever it is doing then.
void arm_kill(std::chrono::nanoseconds delay) {
  constexpr long kPerSecond = 1'000'000'000;
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer{};
  itimerspec when{};
  when.it_value.tv_sec = delay.count() / kPerSecond;
  when.it_value.tv_nsec = std::max(1L, delay.count() % kPerSecond);
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 ||
      ::timer_settime(timer, 0, &when, nullptr) != 0) {
    ::_exit(3);
  }
}

struct Round {
  // Killed this many microseconds after the start, be it while opening; or, when that is 0, this
  // many times as long after the first commit as that commit took, so that it falls into later
  // steps on any machine.
  std::int64_t delay_us = 0;
  double delay_commits = 0;
  std::int64_t commit_every = 1;
  Durability durability = Durability::process;
  nvme::DirectIo direct = nvme::DirectIo::automatic;
};

// Trains for ever: each step writes every shard. Returns only when something threw.
void train_until_killed(const std::string& directory, const Round& round) {
  if (round.delay_us != 0) arm_kill(std::chrono::microseconds(round.delay_us));
  const auto engine = make_engine();
  const auto store =
      SwapStore::holds_committed(directory)
          ? SwapStore::open(directory, *engine, round.durability, round.direct)
          : SwapStore::create(directory, *engine, small_shards(), round.durability, round.direct);
  bool armed = round.delay_us != 0;
  const Clock::time_point begin = Clock::now();
  for (std::int64_t step = store->committed_step() + 1;; ++step) {
    update_all(*store, step);
    if (step % round.commit_every != 0) continue;
    store->commit(step, "{\"step\": " + std::to_string(step) + "}");
    if (armed) continue;
    const std::chrono::duration<double> took = Clock::now() - begin;
    arm_kill(std::chrono::duration_cast<std::chrono::nanoseconds>(took * round.delay_commits));
    armed = true;
  }
}

// The status of a child that ran `round`.
int run_killed(const std::string& directory, const Round& round) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      train_until_killed(directory, round);
    } catch (const std::exception& error) {
      const std::string said = std::string("the child: ") + error.what() + "\n";
      [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, said.data(), said.size());
    }
    ::_exit(2);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

// Checks that the directory holds a whole step, at least `least`, and returns it (0: none yet).
std::int64_t check_resumable(const std::string& directory, std::int64_t least) {
  if (!SwapStore::holds_committed(directory)) {
    EXPECT_EQ(least, 0) << "a committed step was lost";
    return 0;
  }
  const auto engine = make_engine();
  const auto store = SwapStore::open_read_only(directory, *engine);
  const std::int64_t step = store->committed_step();
  EXPECT_GE(step, least);
  EXPECT_EQ(store->committed_metadata(), "{\"step\": " + std::to_string(step) + "}");
  EXPECT_EQ(difference_from(*store, step), "");
  EXPECT_TRUE(verify(directory, *engine).damaged.empty());
  return step;
}

// How the next run ends: a quarter of them at their start.
void choose_end(Round& round, std::mt19937& random) {
  if (random() % 4 == 0) {
    round.delay_us = 100 + static_cast<std::int64_t>(random() % 15'000);
  } else {
    round.delay_commits = static_cast<double>(random() % 1000) / 250.0;
  }
}

TEST(SwapStoreKilled, AtAnyMomentKeepsTheLastCommittedStepWhole) {
  const TempDir dir;
  constexpr unsigned kSeed = 51966;
  std::mt19937 random(kSeed);
  RecordProperty("seed", static_cast<int>(kSeed));
  std::int64_t step = 0;
  for (int i = 0; i < 60; ++i) {
    Round round;
    choose_end(round, random);
    round.commit_every = random() % 3 == 0 ? 3 : 1;
    round.durability = random() % 6 == 0 ? Durability::power : Durability::process;
    round.direct = random() % 2 == 0 ? nvme::DirectIo::off : nvme::DirectIo::automatic;
    SCOPED_TRACE("round " + std::to_string(i));
    const int status = run_killed(dir.path(), round);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    const std::int64_t now = check_resumable(dir.path(), step);
    ASSERT_FALSE(HasFailure());
    const std::int64_t least = round.delay_us == 0 ? step + 1 : step;
    ASSERT_GE(now, least) << "killed after a commit, when that is one more";
    step = now;
  }
}

TEST(SwapStoreKilled, WithDurabilityNoneNeverLooksResumable) {
  const TempDir dir;
  std::mt19937 random(4711);
  for (int i = 0; i < 12; ++i) {
    {
      // A directory that was closed in an orderly way ...
      const auto engine = make_engine();
      const auto store = SwapStore::create(dir.path(), *engine, small_shards(), Durability::none,
                                           nvme::DirectIo::automatic);
      update_all(*store, 1);
      store->commit(1, "{\"step\": 1}");
      store->close_cleanly();
    }
    // ... and goes on until it is killed: the step it had, as long as it has not written; else
    // nothing.
    Round round;
    round.durability = Durability::none;
    choose_end(round, random);
    const int status = run_killed(dir.path(), round);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    if (!SwapStore::holds_committed(dir.path())) continue;
    EXPECT_NE(round.delay_us, 0) << "it was killed after a step";
    EXPECT_EQ(check_resumable(dir.path(), 1), 1);
    std::filesystem::remove(dir.file("manifest.json"));
  }
}

// An engine whose n-th write (from 0) fails with EIO.
std::unique_ptr<nvme::IoEngine> make_failing_engine(std::uint64_t failing_write) {
  nvme::FaultyOptions options;
  options.rule = [failing_write, writes = std::uint64_t{0}](const nvme::IoRequest& request,
                                                            std::uint64_t) mutable {
    const bool fails = request.op == nvme::IoOp::write && writes++ == failing_write;
    return fails ? nvme::Fault::with(-EIO) : nvme::Fault{};
  };
  auto backend = nvme::make_backend(nvme::BackendKind::threads, kSmallBlocks.depth, 2).backend;
  return std::make_unique<nvme::IoEngine>(
      std::make_unique<nvme::FaultyBackend>(std::move(backend), std::move(options)), kSmallBlocks);
}

// Whether a run that goes on from step 1 to step 2 got there, though its n-th write failed.
bool reaches_step_2(const std::string& directory, std::uint64_t failing_write) {
  const auto engine = make_failing_engine(failing_write);
  const auto store =
      SwapStore::open(directory, *engine, Durability::process, nvme::DirectIo::automatic);
  try {
    update_all(*store, 2);
  } catch (const IoError& error) {
    EXPECT_EQ(error.code().value(), EIO);
    EXPECT_THROW(store->commit(2, "{\"step\": 2}"), InvalidArgument)
        << "an update whose write failed is not to be committed";
    return false;
  }
  store->commit(2, "{\"step\": 2}");
  return true;
}

TEST(SwapStoreFaults, AnyWriteMayFailAndThePreviousCommitHolds) {
  const TempDir dir;
  {
    const auto engine = make_engine();
    const auto store = SwapStore::create(dir.path(), *engine, small_shards(), Durability::process,
                                         nvme::DirectIo::automatic);
    update_all(*store, 1);
    store->commit(1, "{\"step\": 1}");
  }
  std::uint64_t failing_write = 0;
  while (!reaches_step_2(dir.path(), failing_write)) {
    EXPECT_EQ(check_resumable(dir.path(), 1), 1) << "write " << failing_write;
    ++failing_write;
    ASSERT_LT(failing_write, 1000U);
  }
  EXPECT_GE(failing_write, 18U) << "17 blocks of the largest shard and one for each of the others";
  EXPECT_EQ(check_resumable(dir.path(), 2), 2);
}

TEST(SwapStoreFaults, AManifestThatCannotBeWrittenLeavesTheOldOne) {
  const TempDir dir;
  const std::string said = nvme::run_in_child([&]() -> std::string {
    const auto engine = make_engine();
    const std::vector<ShardSpec> shards = {{"w", 5000}};
    const auto store =
        SwapStore::create(dir.path(), *engine, shards, Durability::process, nvme::DirectIo::off);
    update_all(*store, 1);
    store->commit(1, "{\"step\": 1}");
    update_all(*store, 2);
    // Files may not grow beyond 16 KiB from here on: the shard fits, the manifest is cut in the
    // middle.
    const ::sluice::test::FileLimit limit(16'384);
    try {
      store->commit(2, std::string(100'000, ' '));
      return "no error";
    } catch (const IoError& error) {
      if (error.code().value() != EFBIG) return error.what();
      if (std::filesystem::exists(dir.file("manifest.json.tmp"))) return "the draft is still there";
    }
    if (store->committed_step() != 1) return "the step has changed";
    const std::string difference = difference_from(*store, 2);
    if (!difference.empty()) return "the update was lost: " + difference;
    store->commit(2, "{\"step\": 2}");
    return "second attempt committed";
  });
  EXPECT_EQ(said, "second attempt committed");
  EXPECT_EQ(check_resumable(dir.path(), 2), 2);
}

// The kernel tells of a lost write once: a second sync of these files would return as if all of it
// were there.
TEST(SwapStoreFaults, NothingIsCommittedAfterASyncThatFailed) {
  const TempDir dir;
  const std::string said = nvme::run_in_child([&]() -> std::string {
    const auto engine = make_engine();
    const std::vector<ShardSpec> shards = {{"w", 5000}};
    const auto store =
        SwapStore::create(dir.path(), *engine, shards, Durability::power, nvme::DirectIo::off);
    update_all(*store, 1);
    store->commit(1, "{\"step\": 1}");
    update_all(*store, 2);
    nvme::deny(SYS_fdatasync, EIO);
    for (const char* const expected : {"Input/output error", "an earlier sync of the states"}) {
      try {
        store->commit(2, "{}");
        return "no error";
      } catch (const std::exception& error) {
        if (std::string(error.what()).find(expected) == std::string::npos) return error.what();
      }
    }
    return "refused";
  });
  EXPECT_EQ(said, "refused");
  EXPECT_EQ(check_resumable(dir.path(), 1), 1);
}

// No drive was asked, so nothing is lost.
TEST_F(SwapStoreTest, ACommitThatLackedADescriptorIsMadeUpFor) {
  const auto store = create(Durability::power);
  const auto said_without = [](const auto& body) {
    const sluice::test::SoftLimit no_further_file(RLIMIT_NOFILE, 1);
    return message_of<IoError>(body);
  };
  update_all(*store, 1);
  EXPECT_THAT(said_without([&] { store->commit(1, "{}"); }), HasSubstr("Too many open files"));
  store->commit(1, "{}");
  EXPECT_EQ(SwapStore::read_committed(dir_.path()).step, 1);
  EXPECT_THAT(said_without([&] { store->close_cleanly(); }), HasSubstr("Too many open files"));
  store->close_cleanly();
}

class FullDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!mount_.why_not().empty()) GTEST_SKIP() << mount_.why_not();
  }
  TempDir dir_;
  nvme::ScopedMount mount_{dir_.path(), "tmpfs", "size=8m"};
  std::unique_ptr<nvme::IoEngine> engine_ = make_engine();
};

TEST_F(FullDisk, RefusesAStoreThatDoesNotFitAndNamesNeededAndFreeBytes) {
  const std::vector<ShardSpec> shards = {{"w", 5 * kChecksumChunkBytes}};
  const std::uint64_t needed_bytes = SwapStore::disk_bytes(shards, Durability::process);
  {
    const DirectoryLock made(dir_.path(), DirectoryLock::Mode::exclusive);
  }  // its file takes a page
  const std::uint64_t free_bytes = nvme::free_disk_bytes(dir_.path());
  write_text(dir_.file("scratch.old.swap"), "left by a dead run");
  const std::string said = message_of<IoError>([&] {
    SwapStore::create(dir_.path(), *engine_, shards, Durability::process,
                      nvme::DirectIo::automatic);
  });
  EXPECT_THAT(said, HasSubstr(std::to_string(needed_bytes) + " bytes"));
  EXPECT_THAT(said, HasSubstr(std::to_string(free_bytes) + " bytes"));
  EXPECT_THAT(said, HasSubstr(dir_.path()));
  EXPECT_EQ(SwapStore::list_files(dir_.path()),
            std::vector<std::string>{dir_.file("scratch.old.swap")})
      << "nothing made, nothing lost";
  // One slot fits, as the message says.
  EXPECT_NO_THROW(SwapStore::create(dir_.path(), *engine_, shards, Durability::none,
                                    nvme::DirectIo::automatic));
}

TEST_F(FullDisk, CountsTheSpaceOfADeadRunAsFree) {
  const std::vector<ShardSpec> shards = {{"w", 3 * kChecksumChunkBytes}};
  for (int i = 0; i < 2; ++i) {
    EXPECT_NO_THROW(SwapStore::create(dir_.path(), *engine_, shards, Durability::process,
                                      nvme::DirectIo::automatic));
  }
}

TEST_F(FullDisk, KeepsTheCommittedStepWhenTheManifestFindsNoRoom) {
  const std::vector<ShardSpec> shards = {{"w", kChecksumChunkBytes}};
  const auto store = SwapStore::create(dir_.path(), *engine_, shards, Durability::process,
                                       nvme::DirectIo::automatic);
  update_all(*store, 1);
  store->commit(1, "{\"step\": 1}");
  update_all(*store, 2);
  nvme::SwapFile filler(dir_.file("filler"), nvme::OpenMode::create, nvme::DirectIo::off);
  filler.allocate(nvme::free_disk_bytes(dir_.path()));
  EXPECT_EQ(
      message_of<IoError>([&] { store->commit(2, "{}"); }).find(dir_.file("manifest.json.tmp")),
      0U);
  EXPECT_FALSE(std::filesystem::exists(dir_.file("manifest.json.tmp")));
  EXPECT_EQ(SwapStore::read_committed(dir_.path()).step, 1);
  filler.allocate(4096);
  store->commit(2, "{}");
  EXPECT_EQ(SwapStore::read_committed(dir_.path()).step, 2);
}

TEST_F(FullDisk, KeepsTheCommittedStepWhenTheSecondSlotFindsNoRoom) {
  const std::vector<ShardSpec> shards = {{"w", 5 * kChecksumChunkBytes}};
  {
    const auto store = SwapStore::create(dir_.path(), *engine_, shards, Durability::none,
                                         nvme::DirectIo::automatic);
    update_all(*store, 1);
    store->commit(1, "{\"step\": 1}");
    store->close_cleanly();
  }
  EXPECT_THAT(message_of<IoError>([&] {
                SwapStore::open(dir_.path(), *engine_, Durability::process,
                                nvme::DirectIo::automatic);
              }),
              HasSubstr("needs 5242880 bytes"));
  EXPECT_EQ(SwapStore::list_files(dir_.path()),
            (std::vector<std::string>{dir_.file("manifest.json"), dir_.file("states.0.swap")}));
  EXPECT_EQ(check_resumable(dir_.path(), 1), 1);
}

}  // namespace
}  // namespace sluice::offload::test
