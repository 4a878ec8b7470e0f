// Measures the optimizers on the host against the memory's own speed.
//
// One step:
//   <optimizer>/<state>/<gradient>/<weight>/<parameters>[/tensors:<n>[/apart]]/threads:<n>
// Squared norm and finite check:
//   GradientStats/<gradient>/<parameters>/threads:<n>
//
// Counters: GBps and Gparam_s of the optimizer; bound_GBps of a loop with equal reads and writes
// but no arithmetic; the ratio of the two. Both sides run in slices in this process, in swapped
// order at every pair. Counters are medians; the ratio is the median of the paired ratios. The
// label is the kernel.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "adam/adam_bound.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/cpu_adam/optimizer.hpp"

namespace {

using namespace sluice;
using namespace sluice::cpu_adam;
using bench::Buffer;
using bench::Bytes;
using bench::move_bytes;
using bench::read_bytes;
using bench::value_of;
using bench::WeightStore;

constexpr int kPairs = 15;                          // slices of each side per iteration
constexpr std::size_t kSliceElements = 1 << 20;     // small sizes repeat to fill a slice
constexpr std::size_t kChunk = 65'536;              // the chunk of step()
constexpr std::size_t kStreamingCount = 1'048'576;  // from this size on, step() streams the weight

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

// Runs both sides alternately and reports. `bytes` and `count`: of one call of either side.
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

enum class Layout { fp32, split, bf16, split_bf16 };  // of the states; the last two: moments
bool is_split(Layout layout) {
  return layout == Layout::split || layout == Layout::split_bf16;
}
bool has_bf16_moments(Layout layout) {
  return layout == Layout::bf16 || layout == Layout::split_bf16;
}

// The memory of a step of T gradients and weights.
template <class T>
class States {
 public:
  States(const OptimizerConfig& config, Layout layout, std::size_t count)
      : layout_(layout), gradient_(count, value_of<T>(1e-3F)) {
    if (is_split(layout)) {
      high_.emplace_back(count, to_bf16(1.0F));
      low_.emplace_back(count, std::uint16_t{0});
    } else {
      master_.emplace_back(count, 1.0F);
      weight_.emplace_back(count, T{});
    }
    for (std::size_t k = 0; k < moment_count(config); ++k) {
      const float value = k == 0 ? 1e-3F : 1e-6F;
      if (has_bf16_moments(layout)) {
        moments16_.emplace_back(count, to_bf16(value));
      } else {
        moments32_.emplace_back(count, value);
      }
    }
  }

  Tile tile(std::size_t first, std::size_t count) const {
    Tile out{.gradient = std::span<const T>(gradient_.span().subspan(first, count)),
             .first_element = first};
    if (is_split(layout_)) {
      out.master =
          SplitMaster{high_[0].span().subspan(first, count), low_[0].span().subspan(first, count)};
    } else {
      out.master = master_[0].span().subspan(first, count);
      out.weight = weight_[0].span().subspan(first, count);
    }
    for (std::size_t k = 0; k < moments32_.size(); ++k)
      out.moments[k] = moments32_[k].span().subspan(first, count);
    for (std::size_t k = 0; k < moments16_.size(); ++k)
      out.moments[k] = moments16_[k].span().subspan(first, count);
    return out;
  }

  Bytes bytes(std::size_t first, std::size_t count) const {
    const auto at = [first]<class E>(const Buffer<E>& buffer) {
      return std::as_writable_bytes(buffer.span().subspan(first)).data();
    };
    Bytes out{.gradient_bytes = sizeof(T), .count = count};
    for (const auto& each : master_) out.wide[out.wides++] = at(each);
    for (const auto& each : moments32_) out.wide[out.wides++] = at(each);
    for (const auto& each : high_) out.narrow[out.narrows++] = at(each);
    for (const auto& each : low_) out.narrow[out.narrows++] = at(each);
    for (const auto& each : moments16_) out.narrow[out.narrows++] = at(each);
    out.gradient = at(gradient_);
    if (!weight_.empty()) out.weight = at(weight_[0]);
    return out;
  }

 private:
  Layout layout_;
  std::vector<Buffer<float>> master_, moments32_;
  std::vector<Buffer<Bf16>> high_, moments16_;
  std::vector<Buffer<std::uint16_t>> low_;
  Buffer<T> gradient_;
  std::vector<Buffer<T>> weight_;
};

std::size_t bytes_per_element(const Bytes& bytes) {
  return 8 * bytes.wides + 4 * bytes.narrows +
         bytes.gradient_bytes * (bytes.weight == nullptr ? 1 : 2);
}

// Sizes of `tensors` tensors with `count` elements in all. Equal sizes; thousands of tensors are
// spread over all orders of magnitude, like a model's matrices and vectors.
std::vector<std::size_t> tensor_sizes(std::size_t count, std::size_t tensors) {
  std::vector<std::size_t> sizes(tensors, count / tensors);
  if (tensors < 1'000) return sizes;
  // Three in four are vectors of 64 to 1,100; matrices share the rest by these quarters.
  constexpr std::size_t kQuarters[] = {1, 2, 4, 9};
  std::size_t left = count;
  for (std::size_t i = 0; i < tensors; ++i) {
    if (i % 4 == 0) continue;
    sizes[i] = 64 + 37 * (i % 29);
    left -= sizes[i];
  }
  const std::size_t matrix = left / (tensors / 4 + 1);
  for (std::size_t i = 4; i < tensors; i += 4) {
    sizes[i] = matrix * kQuarters[i / 4 % 4] / 4;
    left -= sizes[i];
  }
  sizes[0] = left;
  return sizes;
}

// Tensors in one flat buffer, or with a gap between any two.
struct Tensors {
  std::size_t number = 1;
  bool apart = false;
  std::size_t gap() const { return apart ? 64 : 0; }
  std::string name() const {
    if (number == 1) return "";
    return "/tensors:" + std::to_string(number) + (apart ? "/apart" : "");
  }
};

template <class T>
void step_bench(benchmark::State& state, const OptimizerConfig& config, Layout layout,
                std::size_t count, const Tensors& tensors, int threads) {
  const States<T> states(config, layout, count + tensors.number * tensors.gap());
  const auto executor = make_executor(threads);
  std::vector<Tile> tiles;
  std::size_t first = 0;
  for (const std::size_t size : tensor_sizes(count, tensors.number)) {
    tiles.push_back(states.tile(first, size));
    first += size + tensors.gap();
  }
  const Group group{config, tiles};
  std::int64_t steps = 0;
  const auto ours = [&] {
    step({&group, 1}, {.step = ++steps, .gradient_factor = 0.5F}, *executor);
  };
  const WeightStore store = count >= kStreamingCount ? WeightStore::streaming : WeightStore::cached;
  const auto bound = [&] {
    for_chunks(*executor, count, [&](std::size_t begin, std::size_t length) {
      move_bytes(states.bytes(begin, length), store);
    });
  };
  compare(state, ours, bound, static_cast<double>(count * bytes_per_element(states.bytes(0, 0))),
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

constexpr std::size_t kSizes[] = {1'024,      16'384,     262'144,    4'194'304,
                                  16'777'216, 67'108'864, 268'435'456};

template <class T>
void add_step(const std::string& name, const OptimizerConfig& config, Layout layout,
              std::size_t count, const Tensors& tensors, int threads) {
  benchmark::RegisterBenchmark(
      (name + '/' + std::to_string(count) + tensors.name() + "/threads:" + std::to_string(threads))
          .c_str(),
      [=](benchmark::State& state) {
        step_bench<T>(state, config, layout, count, tensors, threads);
      })
      ->Unit(benchmark::kMillisecond);
}

template <class T>
void add_type(const std::string& type, const std::vector<int>& thread_counts) {
  const AdamConfig adam{.learning_rate = 1e-6, .weight_decay = 0.01};
  const std::pair<const char*, OptimizerConfig> others[] = {
      {"AmsGrad", AdamConfig{.learning_rate = 1e-6, .amsgrad = true}},
      {"Adagrad", AdagradConfig{.learning_rate = 1e-6}},
      {"Lion", LionConfig{.learning_rate = 1e-6}},
      {"Momentum", SgdConfig{.learning_rate = 1e-6, .momentum = 0.9}},
      {"Sgd", SgdConfig{.learning_rate = 1e-6}}};
  for (const std::size_t count : kSizes) {
    for (const int threads : thread_counts) {
      const std::string weights = type + '/' + type, split = type + "/split";
      add_step<T>("Adam/fp32/" + weights, adam, Layout::fp32, count, {}, threads);
      for (const auto& [name, config] : others)
        add_step<T>(name + ("/fp32/" + weights), config, Layout::fp32, count, {}, threads);
      add_step<T>("Adam/bf16/" + weights, adam, Layout::bf16, count, {}, threads);
      add_step<T>("Adam/split/" + split, adam, Layout::split, count, {}, threads);
      add_step<T>("Adam/split_bf16/" + split, adam, Layout::split_bf16, count, {}, threads);
      if (count == 67'108'864) {
        for (const Tensors& tensors : {Tensors{64}, Tensors{20'000}, Tensors{20'000, true}})
          add_step<T>("Adam/fp32/" + weights, adam, Layout::fp32, count, tensors, threads);
      }
      benchmark::RegisterBenchmark(
          ("GradientStats/" + type + '/' + std::to_string(count) +
           "/threads:" + std::to_string(threads))
              .c_str(),
          [count, threads](benchmark::State& state) { stats_bench<T>(state, count, threads); })
          ->Unit(benchmark::kMillisecond);
    }
  }
}

}  // namespace

int main(int argc, char** argv) try {
  kernel_in_use();  // reports a wrong SLUICE_SIMD before anything runs
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
