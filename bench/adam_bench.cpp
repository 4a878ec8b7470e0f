// Adam on the host against the memory's own speed.
//
//   Adam/<state>/<gradient>/<weight>/<parameters>/threads:<n>     one step
//   GradientStats/<gradient>/<parameters>/threads:<n>             squared norm and finite check
//
// Counters: GBps and Gparam_s of ours, bound_GBps of a loop with the same reads and writes and no
// arithmetic, ratio of the two. Both sides run in slices in this process, order swapped at every
// pair; the counters are medians, the ratio is the median of the paired ratios. The label is the
// kernel.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "sluice/base/bytes.hpp"
#include "sluice/cpu_adam/adam.hpp"

namespace {

using namespace sluice;
using namespace sluice::cpu_adam;

constexpr std::size_t kAlignment = 64;
constexpr int kPairs = 15;                          // slices of each side per iteration
constexpr std::size_t kSliceElements = 1 << 20;     // small sizes repeat to fill a slice
constexpr std::size_t kChunk = 65'536;              // as step() splits
constexpr std::size_t kStreamingCount = 1'048'576;  // from here on step() streams the weight

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

// What the compiler cannot see is the same pointer: a value stored back where it came from is a
// store.
template <class T>
T* hide(T* pointer) {
  asm volatile("" : "+r"(pointer));
  return pointer;
}

// 64 bytes of one stream. The widest registers of the machine carry it, as in the kernels.
constexpr std::size_t kLineBytes = 64;
using Line = unsigned char __attribute__((vector_size(kLineBytes)));

[[gnu::always_inline]] inline void copy_line(void* to, const void* from) {
  Line line;
  std::memcpy(&line, from, kLineBytes);
  std::memcpy(to, &line, kLineBytes);
}

// Around the caches where there is such a store.
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
  __builtin_prefetch(reinterpret_cast<const char*>(reinterpret_cast<std::uintptr_t>(from) + 4096));
}

enum class WeightStore { cached, streaming };

// The bytes of a run of elements: three streams of states in place, one read, one written.
struct Bytes {
  std::byte* states[3];
  const std::byte* gradient;
  std::byte* weight;
  std::size_t state_bytes;     // of each state
  std::size_t gradient_bytes;  // and of the weight
};

// The bound of a step: master and moments read and written, the gradient read, the weight written.
// Counts are multiples of 32 elements, so lines are whole.
[[gnu::target_clones("arch=x86-64-v4,arch=x86-64-v3,default")]] void move_bytes(const Bytes& bytes,
                                                                                WeightStore store) {
  std::byte* const to[3] = {hide(bytes.states[0]), hide(bytes.states[1]), hide(bytes.states[2])};
  const std::size_t lines = bytes.state_bytes / kLineBytes;
  const std::size_t lines_per_gradient = bytes.state_bytes / bytes.gradient_bytes;  // 1 or 2
  for (std::size_t i = 0; i < lines; ++i) {
    const std::size_t at = i * kLineBytes;
    for (int s = 0; s < 3; ++s) {
      prefetch(bytes.states[s] + at);
      copy_line(to[s] + at, bytes.states[s] + at);
    }
    if (i % lines_per_gradient != 0) continue;
    const std::size_t half_at = at / lines_per_gradient;
    prefetch(bytes.gradient + half_at);
    if (store == WeightStore::streaming) {
      stream_line(bytes.weight + half_at, bytes.gradient + half_at);
    } else {
      copy_line(bytes.weight + half_at, bytes.gradient + half_at);
    }
  }
}

// The bound of the statistics: every byte read, combined by the cheapest operation that keeps the
// read.
[[gnu::target_clones("arch=x86-64-v4,arch=x86-64-v3,default")]] void read_bytes(
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

double seconds_of(const std::function<void()>& work, std::size_t repeats) {
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < repeats; ++i) work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Runs both sides alternately and reports. `bytes` and `count` are of one call of either side.
void compare(benchmark::State& state, const std::function<void()>& ours,
             const std::function<void()>& bound, double bytes, std::size_t count) {
  const std::size_t repeats = std::max<std::size_t>(1, kSliceElements / count);
  std::vector<double> our_seconds, bound_seconds, ratios;
  const auto run_bound = [&] {
    state.PauseTiming();
    const double seconds = seconds_of(bound, repeats);
    state.ResumeTiming();
    return seconds;
  };
  ours();
  bound();
  for (auto _ : state) {
    for (int pair = 0; pair < kPairs; ++pair) {
      double theirs = 0;
      if (pair % 2 == 0) theirs = run_bound();
      const double mine = seconds_of(ours, repeats);
      if (pair % 2 != 0) theirs = run_bound();
      our_seconds.push_back(mine);
      bound_seconds.push_back(theirs);
      ratios.push_back(theirs / mine);
    }
  }
  const double calls = static_cast<double>(repeats);
  state.counters["GBps"] = calls * bytes / median(our_seconds) / 1e9;
  state.counters["bound_GBps"] = calls * bytes / median(bound_seconds) / 1e9;
  state.counters["ratio"] = median(ratios);
  state.counters["Gparam_s"] = calls * static_cast<double>(count) / median(our_seconds) / 1e9;
  state.SetLabel(std::string(kernel_in_use()));
}

void for_chunks(Executor& executor, std::size_t count,
                const std::function<void(std::size_t first, std::size_t count)>& body) {
  executor.for_each(ceil_div(count, kChunk), [&](std::size_t chunk) {
    body(chunk * kChunk, std::min(kChunk, count - chunk * kChunk));
  });
}

template <class T>
void step_bench(benchmark::State& state, std::size_t count, int threads) {
  const Buffer<float> p(count, 1.0F), m(count, 1e-3F), v(count, 1e-6F);
  const Buffer<T> gradient(count, value_of<T>(1e-3F)), weight(count, T{});
  const auto executor = make_executor(threads);
  const AdamConfig config{.learning_rate = 1e-6, .weight_decay = 0.01};
  const AdamTile tile{p.span(), m.span(), v.span(), std::span<const T>(gradient.span()),
                      weight.span()};
  std::int64_t steps = 0;
  const auto ours = [&] { step(config, {.step = ++steps}, tile, *executor); };
  const WeightStore store = count >= kStreamingCount ? WeightStore::streaming : WeightStore::cached;
  const auto bound = [&] {
    for_chunks(*executor, count, [&](std::size_t first, std::size_t length) {
      move_bytes({.states = {std::as_writable_bytes(p.span().subspan(first)).data(),
                             std::as_writable_bytes(m.span().subspan(first)).data(),
                             std::as_writable_bytes(v.span().subspan(first)).data()},
                  .gradient = std::as_bytes(gradient.span().subspan(first)).data(),
                  .weight = std::as_writable_bytes(weight.span().subspan(first)).data(),
                  .state_bytes = length * sizeof(float),
                  .gradient_bytes = length * sizeof(T)},
                 store);
    });
  };
  compare(state, ours, bound, static_cast<double>(count * (6 * sizeof(float) + 2 * sizeof(T))),
          count);
}

template <class T>
void stats_bench(benchmark::State& state, std::size_t count, int threads) {
  const Buffer<T> gradient(count, value_of<T>(1e-3F));
  const auto executor = make_executor(threads);
  const auto ours = [&] {
    benchmark::DoNotOptimize(gradient_stats(std::span<const T>(gradient.span()), *executor));
  };
  const auto bound = [&] {
    for_chunks(*executor, count, [&](std::size_t first, std::size_t length) {
      read_bytes(std::as_bytes(gradient.span().subspan(first)).data(), length * sizeof(T));
    });
  };
  compare(state, ours, bound, static_cast<double>(count * sizeof(T)), count);
}

template <class T>
void add_type(const std::string& type, const std::vector<int>& thread_counts) {
  for (const std::size_t count : std::initializer_list<std::size_t>{
           1'024, 16'384, 262'144, 4'194'304, 16'777'216, 67'108'864}) {
    for (const int threads : thread_counts) {
      const std::string end =
          type + '/' + std::to_string(count) + "/threads:" + std::to_string(threads);
      benchmark::RegisterBenchmark(
          (std::string("Adam/fp32/") + type + '/' + end).c_str(),
          [count, threads](benchmark::State& state) { step_bench<T>(state, count, threads); })
          ->Unit(benchmark::kMillisecond);
      benchmark::RegisterBenchmark(
          (std::string("GradientStats/") + end).c_str(),
          [count, threads](benchmark::State& state) { stats_bench<T>(state, count, threads); })
          ->Unit(benchmark::kMillisecond);
    }
  }
}

}  // namespace

int main(int argc, char** argv) try {
  kernel_in_use();  // a wrong SLUICE_SIMD is reported before anything runs
  std::vector<int> thread_counts{1, 2};
  const auto all = static_cast<int>(std::thread::hardware_concurrency());
  if (all > 2) thread_counts.push_back(all);
  add_type<Bf16>("bf16", thread_counts);
  add_type<Fp16>("fp16", thread_counts);
  add_type<float>("fp32", thread_counts);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
} catch (const std::exception& error) {
  std::fprintf(stderr, "adam_bench: %s\n", error.what());
  return 2;
}
