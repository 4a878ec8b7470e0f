#pragma once
// Memory and bounds of adam_bench: loops that move the bytes of an optimizer's step, or read the
// bytes of a gradient, without arithmetic. Thread-compatible.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "sluice/base/bytes.hpp"
#include "sluice/base/dtype.hpp"

namespace sluice::bench {

constexpr std::size_t kAlignment = 64;

template <class T>
class Buffer {
 public:
  Buffer(std::size_t count, T value) : count_(count) {
    const std::size_t size_bytes = align_up(count * sizeof(T), kAlignment);
    data_.reset(static_cast<T*>(std::aligned_alloc(kAlignment, size_bytes)));
    if (!data_) throw std::bad_alloc();
    std::fill_n(data_.get(), count, value);
  }
  std::span<T> span() const { return {data_.get(), count_}; }

 private:
  struct Free {
    void operator()(T* data) const { std::free(data); }
  };
  std::size_t count_;
  std::unique_ptr<T, Free> data_;
};

template <class T>
T value_of(float value) {
  if constexpr (std::is_same_v<T, Bf16>) return to_bf16(value);
  if constexpr (std::is_same_v<T, Fp16>) return to_fp16(value);
  if constexpr (std::is_same_v<T, float>) return value;
}

// Hides from the compiler that two pointers are equal, so that storing a value back stays a store.
template <class T>
T* hide(T* pointer) {
  asm volatile("" : "+r"(pointer));
  return pointer;
}

// Moves 64 bytes of one stream in the machine's widest registers, as the kernels do.
constexpr std::size_t kLineBytes = 64;
using Line = unsigned char __attribute__((vector_size(kLineBytes)));

[[gnu::always_inline]] inline void copy_line(void* to, const void* from) {
  Line line;
  std::memcpy(&line, from, kLineBytes);
  std::memcpy(to, &line, kLineBytes);
}

// Bypasses the caches where the machine has such a store.
[[gnu::always_inline]] inline void stream_line(void* to, const void* from) {
#if defined(__SSE2__)
  auto* out = static_cast<__m128i*>(to);
  const auto* in = static_cast<const __m128i*>(from);
  for (int i = 0; i < 4; ++i) _mm_stream_si128(out + i, _mm_load_si128(in + i));
#else
  copy_line(to, from);
#endif
}

// The kernels prefetch a page ahead; so does the bound.
[[gnu::always_inline]] inline void prefetch(const void* from) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): past the end, where pointers have no arithmetic
  __builtin_prefetch(reinterpret_cast<const char*>(reinterpret_cast<std::uintptr_t>(from) + 4096));
}

enum class WeightStore { cached, streaming };

// The memory of a run of elements: streams of 4 and of 2 bytes per element that are changed in
// place, one that is read, and one that is written (absent with a split master).
constexpr std::size_t kBlock = 32;  // elements: a line of 2-byte ones, two of 4-byte ones
struct Bytes {
  std::array<std::byte*, 4> wide{};    // 4 bytes per element, in place
  std::array<std::byte*, 5> narrow{};  // 2 bytes per element, in place
  std::size_t wides = 0;
  std::size_t narrows = 0;
  const std::byte* gradient = nullptr;
  std::byte* weight = nullptr;
  std::size_t gradient_bytes = 2;  // per element of gradient and weight
  std::size_t count = 0;           // elements, a multiple of kBlock
};

[[gnu::always_inline]] inline void copy_lines(std::byte* to, const std::byte* from,
                                              std::size_t lines) {
  for (std::size_t i = 0; i < lines; ++i) {
    prefetch(from + i * kLineBytes);
    copy_line(to + i * kLineBytes, from + i * kLineBytes);
  }
}

// The bound of a step: its reads and writes.
[[gnu::target_clones("arch=x86-64-v4,arch=x86-64-v3,default")]] static void move_bytes(
    const Bytes& bytes, WeightStore store) {
  // Copies, so that the compiler knows that the loop's stores leave them unchanged.
  const auto wide = bytes.wide;
  const auto narrow = bytes.narrow;
  const std::size_t wides = bytes.wides, narrows = bytes.narrows;
  const std::size_t gradient_lines = kBlock * bytes.gradient_bytes / kLineBytes;
  Line sum = {};
  for (std::size_t i = 0; i < bytes.count; i += kBlock) {
    for (std::size_t s = 0; s < wides; ++s) copy_lines(hide(wide[s]) + 4 * i, wide[s] + 4 * i, 2);
    for (std::size_t s = 0; s < narrows; ++s)
      copy_lines(hide(narrow[s]) + 2 * i, narrow[s] + 2 * i, 1);
    for (std::size_t line = 0; line < gradient_lines; ++line) {
      const std::size_t at = i * bytes.gradient_bytes + line * kLineBytes;
      prefetch(bytes.gradient + at);
      if (bytes.weight == nullptr) {
        Line read;
        std::memcpy(&read, bytes.gradient + at, kLineBytes);
        sum |= read;
      } else if (store == WeightStore::streaming) {
        stream_line(bytes.weight + at, bytes.gradient + at);
      } else {
        copy_line(bytes.weight + at, bytes.gradient + at);
      }
    }
  }
  asm volatile("" : : "r"(&sum) : "memory");  // so that the compiler keeps the reads
}

// The bound of the statistics: reads every byte and combines all by the cheapest operation that
// keeps the reads.
[[gnu::target_clones("arch=x86-64-v4,arch=x86-64-v3,default")]] static void read_bytes(
    const std::byte* from, std::size_t size_bytes) {
  Line sum[4] = {};
  for (std::size_t i = 0; i < size_bytes; i += sizeof(sum)) {
    for (std::size_t k = 0; k < 4; ++k) {
      Line line;
      prefetch(from + i + k * kLineBytes);
      std::memcpy(&line, from + i + k * kLineBytes, kLineBytes);
      sum[k] |= line;
    }
  }
  Line all = sum[0] | sum[1] | sum[2] | sum[3];
  asm volatile("" : : "r"(&all) : "memory");
}

}  // namespace sluice::bench
