#pragma once
// How sums over ranks read and write the elements of each type, and share their pieces among
// threads. Not installed. Thread-safe: free functions without state.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#include "sluice/base/dtype.hpp"
#include "sluice/base/executor.hpp"

namespace sluice::zero {

// Elements that one thread works on at a time.
inline constexpr std::size_t kPieceElements = std::size_t{64} << 10U;

struct Fp32Format {
  using Stored = float;
  using Sum = float;
  static Sum load(Stored stored) { return stored; }
  static Stored store(Sum sum) { return sum; }
};
struct Fp64Format {
  using Stored = double;
  using Sum = double;
  static Sum load(Stored stored) { return stored; }
  static Stored store(Sum sum) { return sum; }
};
struct Bf16Format {
  using Stored = std::uint16_t;
  using Sum = float;
  static Sum load(Stored stored) { return to_fp32(Bf16{stored}); }
  static Stored store(Sum sum) { return to_bf16(sum).bits; }
};
struct Fp16Format {
  using Stored = std::uint16_t;
  using Sum = float;
  static Sum load(Stored stored) { return to_fp32(Fp16{stored}); }
  static Stored store(Sum sum) { return to_fp16(sum).bits; }
};

// Element i of memory that needs no alignment.
template <typename Format>
typename Format::Sum load_at(const std::byte* from, std::size_t i) {
  typename Format::Stored stored{};
  std::memcpy(&stored, from + i * sizeof(stored), sizeof(stored));
  return Format::load(stored);
}
template <typename Format>
void store_at(std::byte* to, std::size_t i, typename Format::Sum value) {
  const typename Format::Stored stored = Format::store(value);
  std::memcpy(to + i * sizeof(stored), &stored, sizeof(stored));
}

// Calls work(begin, end) for all of `count` elements, in pieces. A null executor: the calling
// thread does all.
inline void for_each_piece(std::size_t count, Executor* executor,
                           const std::function<void(std::size_t, std::size_t)>& work) {
  const auto work_on = [&](std::size_t piece) {
    const std::size_t begin = piece * kPieceElements;
    work(begin, count - begin < kPieceElements ? count : begin + kPieceElements);
  };
  const std::size_t pieces = (count + kPieceElements - 1) / kPieceElements;
  if (executor != nullptr && pieces > 1) {
    executor->for_each(pieces, work_on);
  } else {
    for (std::size_t piece = 0; piece < pieces; ++piece) work_on(piece);
  }
}

}  // namespace sluice::zero
