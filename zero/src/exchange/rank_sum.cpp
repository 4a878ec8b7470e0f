#include "exchange/rank_sum.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

#include "exchange/element_formats.hpp"
#include "exchange/vector_sum.hpp"
#include "sluice/base/error.hpp"

namespace sluice::zero {

namespace {

// Without vectors: elements whose sums stay in the first-level cache.
constexpr std::size_t kBlock = 1024;

template <typename Format>
void sum_block(std::span<const std::byte* const> parts, std::byte* to, std::size_t begin,
               std::size_t count) {
  constexpr std::size_t kElementBytes = sizeof(typename Format::Stored);
  std::array<typename Format::Sum, kBlock> sums;
  const std::byte* first = parts.front() + begin * kElementBytes;
  if (parts.size() == 1) {
    for (std::size_t i = 0; i < count; ++i) sums[i] = load_at<Format>(first, i);
  } else {
    const std::byte* second = parts[1] + begin * kElementBytes;
    for (std::size_t i = 0; i < count; ++i)
      sums[i] = load_at<Format>(first, i) + load_at<Format>(second, i);
  }
  for (std::size_t part = 2; part < parts.size(); ++part) {
    const std::byte* from = parts[part] + begin * kElementBytes;
    for (std::size_t i = 0; i < count; ++i) sums[i] += load_at<Format>(from, i);
  }
  std::byte* out = to + begin * kElementBytes;
  for (std::size_t i = 0; i < count; ++i) store_at<Format>(out, i, sums[i]);
}

// Elements before the first one that a vector can write without touching a second cache line. Where
// memory is not aligned, a loop of 64-byte vectors takes 1.15 times as long.
std::size_t elements_before_line(const std::byte* to, std::size_t element_bytes) {
  constexpr std::uintptr_t kCacheLine = 64;
  const std::uintptr_t past = reinterpret_cast<std::uintptr_t>(to) % kCacheLine;
  const std::uintptr_t missing = (kCacheLine - past) % kCacheLine;
  return missing % element_bytes == 0 ? missing / element_bytes : 0;
}

template <typename Format>
void sum_all(std::span<const std::byte* const> parts, std::byte* to, std::size_t count,
             Element element, Executor* executor) {
  for_each_piece(count, executor, [&](std::size_t first, std::size_t end) {
    const std::size_t before = std::min(
        elements_before_line(to + first * size_of(element), size_of(element)), end - first);
    sum_block<Format>(parts, to, first, before);
    for (std::size_t begin = sum_vectors(parts, to, first + before, end, element); begin < end;
         begin += kBlock)
      sum_block<Format>(parts, to, begin, std::min(kBlock, end - begin));
  });
}

}  // namespace

void sum_in_rank_order(std::span<const std::byte* const> parts, std::byte* to, std::size_t count,
                       Element element, Executor* executor) {
  switch (element) {
    case Element::fp32:
      return sum_all<Fp32Format>(parts, to, count, element, executor);
    case Element::bf16:
      return sum_all<Bf16Format>(parts, to, count, element, executor);
    case Element::fp16:
      return sum_all<Fp16Format>(parts, to, count, element, executor);
    case Element::fp64:
      return sum_all<Fp64Format>(parts, to, count, element, executor);
    case Element::bytes:
      break;
  }
  throw InvalidArgument("bytes have no sum");
}

}  // namespace sluice::zero
