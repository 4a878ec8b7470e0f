#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "in_child.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/file/proc.hpp"
#include "sluice/offload/memory_pool.hpp"

namespace sluice::offload {
namespace {

constexpr std::size_t kPieceBytes = 64 * kKiB;

std::uint64_t process_bytes(const char* key) {
  return proc_bytes("/proc/self/status", {key}).value_or(0);
}

TEST(HostSource, AlignsToCacheLinesAndPages) {
  MemoryPool pool(Tier::host, kUnlimited, make_host_source());
  std::vector<Buffer> buffers;
  for (const std::size_t size : {1U, 64U, 100U, 4000U, 4096U, 5000U, 60000U, 65536U, 5000000U}) {
    buffers.push_back(pool.allocate(size, "aligned"));
    const std::size_t alignment = size >= kPageBytes ? kPageBytes : 64;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffers.back().data()) % alignment, 0U) << size;
    std::memset(buffers.back().data(), 1, size);
  }
}

TEST(HostSource, FreedMappingsLeaveTheProcess) {
  MemoryPool pool(Tier::host, kUnlimited, make_host_source());
  const std::uint64_t before = process_bytes("VmSize");
  constexpr std::uint64_t kSize = 256 * kMiB;
  { const Buffer block = pool.allocate(kSize, "large"); }
  EXPECT_GE(process_bytes("VmSize"), before + kSize);  // kept
  pool.trim();
  EXPECT_LT(process_bytes("VmSize"), before + kSize);
}

TEST(HostSource, ReportsThatTheSystemHasNoMore) {
  MemoryPool pool(Tier::host, kUnlimited, make_host_source());
  constexpr std::uint64_t kBeyondTheAddressSpace = 1ULL << 60U;
  EXPECT_THROW(pool.allocate(kBeyondTheAddressSpace, "far too much"), OutOfMemory);
}

TEST(HostSource, SizesThatCannotBeRoundedUpAreOutOfMemoryToo) {
  for (const std::uint64_t limit : {kUnlimited, kMiB}) {
    MemoryPool pool(Tier::host, limit, make_host_source());
    for (const std::uint64_t size : {1ULL << 63U, (1ULL << 63U) + 1, ~0ULL - 4094, ~0ULL}) {
      try {
        pool.allocate(size, "far too much");
        ADD_FAILURE() << size;
      } catch (const OutOfMemory& error) {
        EXPECT_EQ(error.requested_bytes(), size);
        EXPECT_LT(error.available_bytes(), size);
        EXPECT_THAT(error.what(), ::testing::HasSubstr("far too much"));
      }
    }
    EXPECT_EQ(pool.usage().live_bytes, 0U);
  }
}

// Whether a forked child has the block's memory.
bool is_in_child(const Buffer& block) {
  unsigned char resident[kPieceBytes / kPageBytes];
  const std::string said = ::sluice::test::run_in_child([&]() -> std::string {
    if (::mincore(block.data(), kPieceBytes, resident) == 0) return "present";
    return errno == ENOMEM ? "absent" : "unknown";
  });
  EXPECT_THAT(said, ::testing::AnyOf("present", "absent"));
  return said == "present";
}

TEST(HostSource, ForkedChildrenHaveItsMemoryOrNot) {
  MemoryPool present(Tier::host, kUnlimited, make_host_source());
  MemoryPool absent(Tier::host, kUnlimited, make_host_source(InChildren::absent));
  EXPECT_TRUE(is_in_child(present.allocate(kPieceBytes, "present")));
  EXPECT_FALSE(is_in_child(absent.allocate(kPieceBytes, "absent")));
}

TEST(PageSource, IsAbsentInForkedChildren) {
  MemoryPool pool(Tier::pinned, kUnlimited, make_page_source());
  EXPECT_FALSE(is_in_child(pool.allocate(kPieceBytes, "pages")));
}

TEST(PinnedSource, IsAbsentInForkedChildren) {
  MemoryPool pool(Tier::pinned, kUnlimited, make_pinned_source());
  EXPECT_FALSE(is_in_child(pool.allocate(kPieceBytes, "pinned")));
}

TEST(PinnedSource, LocksWhatItGivesOut) {
  MemoryPool pool(Tier::pinned, kUnlimited, make_pinned_source());
  const std::uint64_t before = process_bytes("VmLck");
  const Buffer block = pool.allocate(32 * kKiB, "pinned");
  EXPECT_EQ(process_bytes("VmLck"), before + 32 * kKiB);
  std::memset(block.data(), 1, block.size_bytes());
}

TEST(PinnedSource, UnlocksWhatItGetsBack) {
  MemoryPool pool(Tier::pinned, kUnlimited, make_pinned_source());
  const std::uint64_t before = process_bytes("VmLck");
  { const Buffer block = pool.allocate(32 * kKiB, "pinned"); }
  pool.trim();
  EXPECT_EQ(process_bytes("VmLck"), before);
}

constexpr std::uint64_t kLockLimit = 64 * kKiB;

// For a child process: lets RLIMIT_MEMLOCK bite, which it does not for root.
void obey_lock_limit() {
  ::sluice::test::limit_resource(RLIMIT_MEMLOCK, kLockLimit);
  if (::geteuid() == 0) ::sluice::test::become_another_user();
}

// Runs in a child: prints the error of asking for too much on standard error.
[[noreturn]] void exceed_lock_limit() {
  obey_lock_limit();
  MemoryPool pool(Tier::pinned, kUnlimited, make_pinned_source());
  const Buffer fits = pool.allocate(kLockLimit / 2, "fits");
  try {
    pool.allocate(kLockLimit, "does not fit");
  } catch (const OutOfMemory& error) {
    std::fprintf(stderr, "%s %s\n", error.tier().c_str(), error.what());
    std::_Exit(error.available_bytes() == kLockLimit / 2 ? 0 : 12);
  }
  std::_Exit(13);
}

TEST(PinnedSource, NamesTheLockLimitAndHowToRaiseIt) {
  EXPECT_EXIT(exceed_lock_limit(), ::testing::ExitedWithCode(0),
              "pinned cannot lock memory: RLIMIT_MEMLOCK is 65536 bytes.*32768.*ulimit -l");
}

// Runs in a child: what is kept for reuse must not stand in the way of another size.
[[noreturn]] void reuse_lock_limit() {
  obey_lock_limit();
  MemoryPool pool(Tier::pinned, kUnlimited, make_pinned_source());
  { const Buffer kept = pool.allocate(kLockLimit, "kept"); }
  const Buffer other = pool.allocate(kLockLimit / 2, "other");
  std::_Exit(other ? 0 : 14);
}

TEST(PinnedSource, UnlocksKeptBlocksWhenTheLockLimitIsReached) {
  EXPECT_EXIT(reuse_lock_limit(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sluice::offload
