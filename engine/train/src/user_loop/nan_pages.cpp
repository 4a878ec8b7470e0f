#include "user_loop/nan_pages.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/fd.hpp"

namespace sluice::train {

namespace {

constexpr const char* kWhat = "pages of NaN";
constexpr std::uint64_t kLeastBytes = 2 * kMiB;
constexpr std::uint64_t kMostMappings = 256;  // a process has tens of thousands for everything

void* map(void* at, std::uint64_t size_bytes, int protection, int flags, int fd) {
  void* const pages = ::mmap(at, size_bytes, protection, flags, fd, 0);
  if (pages == MAP_FAILED) throw IoError(errno, "mmap", kWhat, 0, size_bytes);
  return pages;
}

std::shared_ptr<void> owner_of(void* pages, std::uint64_t size_bytes) {
  return {pages, [size_bytes](void* at) { ::munmap(at, size_bytes); }};
}

}  // namespace

std::shared_ptr<void> make_nan_pages(std::uint64_t size_bytes) {
  const std::uint64_t part_bytes =
      align_up(std::max<std::uint64_t>(size_bytes / kMostMappings, 1), kLeastBytes);
  const UniqueFd part(SLUICE_SYSCALL(::memfd_create("sluice-nan", MFD_CLOEXEC), kWhat));
  SLUICE_SYSCALL(::ftruncate(part.get(), static_cast<off_t>(part_bytes)), kWhat);
  const auto shared =
      owner_of(map(nullptr, part_bytes, PROT_WRITE, MAP_SHARED, part.get()), part_bytes);
  std::memset(shared.get(), 0xFF, part_bytes);  // NaN in fp32, bf16 and fp16
  const std::uint64_t all_bytes = align_up(std::max<std::uint64_t>(size_bytes, 1), part_bytes);
  constexpr int kPrivate = MAP_PRIVATE | MAP_NORESERVE;
  auto pages =
      owner_of(map(nullptr, all_bytes, PROT_NONE, kPrivate | MAP_ANONYMOUS, -1), all_bytes);
  for (std::uint64_t at = 0; at < all_bytes; at += part_bytes)
    map(static_cast<std::byte*>(pages.get()) + at, part_bytes, PROT_READ | PROT_WRITE,
        kPrivate | MAP_FIXED, part.get());
  return pages;
}

}  // namespace sluice::train
