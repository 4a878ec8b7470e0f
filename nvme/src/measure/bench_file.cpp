#include "sluice/nvme/bench_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <optional>
#include <random>
#include <utility>

#include "measure/pages.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/file/unshared.hpp"

namespace sluice::nvme {

namespace {

constexpr std::uint64_t kWriteBytes = 8 * kMiB;
constexpr unsigned kCheckedPages = 256;

void check_directory(const std::string& directory) {
  struct stat info {};
  if (::stat(directory.c_str(), &info) != 0)
    throw IoError(errno, "stat", directory, 0, 0, "the directory to measure must exist");
  SLUICE_CHECK(S_ISDIR(info.st_mode), directory + " is not a directory");
}

void discard_error(Ticket& ticket) {
  try {
    ticket.finish();
  } catch (const Error&) {
  }
}

void write_whole(const SwapFile& file, std::uint64_t size_bytes, IoEngine& engine,
                 const BenchFileProgress& progress) {
  const BenchPattern pattern(kWriteBytes);
  std::deque<std::pair<std::uint64_t, Ticket>> writes;
  const auto finish_oldest = [&] {
    writes.front().second.finish();
    if (progress) progress(writes.front().first, size_bytes);
    writes.pop_front();
  };
  try {
    for (std::uint64_t at = 0; at < size_bytes; at += kWriteBytes) {
      const std::uint64_t count = std::min(kWriteBytes, size_bytes - at);
      writes.emplace_back(at + count, engine.begin_write(file, at, pattern.at(at, count)));
      if (writes.size() > 4) finish_oldest();
    }
    while (!writes.empty()) finish_oldest();
  } catch (...) {
    // The first error is enough: later writes met the same disk.
    for (auto& [end, ticket] : writes) discard_error(ticket);
    throw;
  }
  file.sync_data();
}

}  // namespace

void BenchPattern::Free::operator()(std::byte* memory) const {
  std::free(memory);
}

BenchPattern::BenchPattern(std::uint64_t most_bytes, std::uint64_t spread_bytes)
    : spread_bytes_(checked_mul(kPeriodBytes,
                                std::max<std::uint64_t>(1, ceil_div(spread_bytes, kPeriodBytes)))),
      size_bytes_(align_up(checked_add(spread_bytes_, most_bytes), kPageBytes)),
      memory_(make_pages(size_bytes_, "pattern of the bench file").release()) {
  std::mt19937_64 random(0x51d1ce);
  auto* words = reinterpret_cast<std::uint64_t*>(memory_.get());
  std::generate_n(words, kPeriodBytes / sizeof(std::uint64_t), std::ref(random));
  for (std::uint64_t at = kPeriodBytes; at < size_bytes_; at += kPeriodBytes) {
    std::memcpy(memory_.get() + at, memory_.get(), std::min(kPeriodBytes, size_bytes_ - at));
  }
}

std::span<const std::byte> BenchPattern::at(std::uint64_t offset_bytes,
                                            std::size_t size_bytes) const {
  const std::uint64_t begin = offset_bytes % spread_bytes_;
  SLUICE_CHECK(size_bytes <= size_bytes_ && begin <= size_bytes_ - size_bytes,
               "the pattern is shorter than what was asked for");
  return {memory_.get() + begin, size_bytes};
}

bool holds_pattern(const SwapFile& file, std::uint64_t size_bytes, IoEngine& engine,
                   unsigned count) {
  const BenchPattern pattern(kPageBytes);
  const std::uint64_t pages = size_bytes / kPageBytes;
  struct Page {
    alignas(4096) std::byte bytes[kPageBytes];
  };
  const auto page = std::make_unique<Page>();
  for (unsigned i = 0; i < count && i < pages; ++i) {
    // The first and the last page are among the samples.
    const std::uint64_t index = count == 1 ? 0 : (pages - 1) * i / (count - 1);
    const std::uint64_t at = index * kPageBytes;
    engine.begin_read(file, at, page->bytes).finish();
    if (std::memcmp(page->bytes, pattern.at(at, kPageBytes).data(), kPageBytes) != 0) return false;
  }
  return true;
}

SwapFile open_bench_file(const std::string& directory, std::uint64_t size_bytes, IoEngine& engine,
                         DirectIo direct, const BenchFileProgress& progress,
                         OlderFile after_failure) {
  check_directory(directory);
  const std::uint64_t whole = align_up(size_bytes, kPageBytes);
  const std::string path = directory + "/" + std::string(kBenchFileName);
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode)) {
    throw IoError(ELOOP, "open", path, 0, 0,
                  "is a symbolic link, and what it leads to would be overwritten; remove it");
  }
  if (::lstat(path.c_str(), &status) == 0 && status.st_nlink > 1) {
    throw IoError(EMLINK, "open", path, 0, 0,
                  "has another name, whose content would be overwritten; remove this one");
  }
  std::optional<SwapFile> locked = SwapFile::open_locked(path, direct);
  if (!locked) {
    throw IoError(EWOULDBLOCK, "flock", path, 0, 0,
                  "another program measures this drive now, and both would find it slow; try again "
                  "when that is done");
  }
  SwapFile file = *std::move(locked);
  const std::uint64_t present = file.size_bytes();
  try {
    if (present >= whole && holds_pattern(file, whole, engine, kCheckedPages)) return file;
    file.allocate(std::max(whole, present));
    write_whole(file, whole, engine, progress);
  } catch (...) {
    // Without content, this call created it.
    if (present == 0 || after_failure == OlderFile::goes) ::unlink(file.path().c_str());
    throw;
  }
  return file;
}

bool bench_file_in_use(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd && (errno == ENOENT || errno == EACCES)) return false;
  if (!fd) throw IoError(errno, "open", path);
  return !try_flock(fd.get(), LOCK_SH, path);
}

}  // namespace sluice::nvme
