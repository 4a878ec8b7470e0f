#pragma once
// The kernels of this build: what each computes, and how one is chosen. Private to the component
// (and to its tests, which run every kernel against the scalar one).
//
// A kernel does not check its arguments, allocates nothing, throws nothing, and runs on the calling
// thread. Any length and alignment; streams do not overlap. Formulas and rounding:
// docs/numerics.md. Thread-safe: the list is constant; a kernel touches only the memory it is
// given.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "sluice/base/dtype.hpp"
#include "sluice/base/executor.hpp"
#include "sluice/cpu_adam/optimizer.hpp"

namespace sluice::cpu_adam {

enum class Rule { adam, amsgrad, adagrad, lion, momentum, sgd };
inline constexpr std::size_t kRules = 6;

// Everything about a step that is the same for all elements; computed in double, rounded to fp32
// once. What a rule does not use is 0.
struct StepConstants {
  float gradient_factor;  // multiplies the gradient first; negative with maximize
  float l2;               // weight decay added to the gradient
  float keep;             // 1 - learning rate * decoupled weight decay; 1 without
  float beta1;            // SGD: the momentum
  float one_minus_beta1;  // SGD: 1 - dampening
  float beta2;
  float one_minus_beta2;
  float epsilon;    // Adam: times sqrt(1 - beta2^step)
  float step_size;  // the learning rate of this step; Adam: times sqrt(1 - beta2^step) / (1 -
                    // beta1^step)
  bool has_l2;
  bool nesterov;
};

// Ordinary stores, or stores that go around the caches: a weight that is larger than the caches is
// not read again soon, and a streaming store does not fetch the line that it overwrites. The caller
// flushes streams before others read (hwy::FlushStream).
enum class WeightStore { cached, streaming };
enum class WeightType { none, fp32, bf16, fp16 };

// Noise for stochastic rounding: 32 bits for each element, from the low half of its number and two
// keys (rounding_key).
struct RoundingKey {
  std::uint32_t first = 0;  // low half of the first element's number; a run does not wrap round
  std::uint32_t keys[2] = {0, 0};
};

enum class MasterLayout { fp32, split };
// What a tile's states are, whatever their values.
struct StateLayout {
  MasterLayout master = MasterLayout::fp32;
  std::size_t moments = 0;
  std::size_t moment_bytes = sizeof(float);  // of an element
};

// One run of elements.
struct TileArguments {
  void* master;        // fp32, or the bf16 weight of a split master
  std::uint16_t* low;  // of a split master
  std::array<void*, kMostMoments> moments;
  const void* gradient;
  DType gradient_type;
  void* weight;
  WeightType weight_type;
  std::size_t count;
  WeightStore store;
  RoundingKey rounding;
};
using StepFunction = void (*)(const StepConstants&, const TileArguments&);

// Squares are summed in this many fp64 accumulators: element i of a chunk goes to accumulator
// i % kAccumulators. A whole number of vectors of any kernel, and enough independent sums to hide
// the latency of the addition.
inline constexpr std::size_t kAccumulators = 32;
using Accumulators = std::array<double, kAccumulators>;
// Adds the squares of `count` elements, the first of which belongs to accumulator 0.
using SumFunction = void (*)(const void* gradient, std::size_t count, Accumulators& sums);

// Where a type stands among the alternatives of GradientSpan.
template <class G>
inline constexpr std::size_t kGradientIndex = std::is_same_v<G, float>  ? 0
                                              : std::is_same_v<G, Bf16> ? 1
                                                                        : 2;

struct Kernel {
  std::string_view name;
  std::int64_t highway_target;      // 0: runs everywhere
  StepFunction step[kRules][2][2];  // [Rule][MasterLayout][0: fp32 moments, 1: bf16]
  SumFunction sum_squares[3];       // [kGradientIndex]
};

// Step<R, layout, type of the moments>::run and SumSquares<G>::run for every combination.
template <template <class, MasterLayout, class> class Step, template <class> class SumSquares,
          class... Rules>
constexpr Kernel make_kernel(std::string_view name, std::int64_t highway_target) {
  Kernel kernel{name, highway_target, {}, {}};
  const auto add = [&kernel]<class R>(R) {
    auto& cell = kernel.step[static_cast<std::size_t>(R::kRule)];
    cell[0][0] = &Step<R, MasterLayout::fp32, float>::run;
    cell[0][1] = &Step<R, MasterLayout::fp32, Bf16>::run;
    cell[1][0] = &Step<R, MasterLayout::split, float>::run;
    cell[1][1] = &Step<R, MasterLayout::split, Bf16>::run;
  };
  static_assert(sizeof...(Rules) == kRules);
  (add(Rules{}), ...);
  kernel.sum_squares[kGradientIndex<float>] = &SumSquares<float>::run;
  kernel.sum_squares[kGradientIndex<Bf16>] = &SumSquares<Bf16>::run;
  kernel.sum_squares[kGradientIndex<Fp16>] = &SumSquares<Fp16>::run;
  return kernel;
}

// The kernels, each defined in its source file.
const Kernel& scalar_kernel();
std::span<const Kernel> vector_kernels();  // best first; empty where only the scalar one exists

// All of this build, best first, the scalar one last.
std::span<const Kernel> kernels();
bool runs_here(const Kernel& kernel);
// The kernel of that name. Throws InvalidArgument with the list when it is unknown or the CPU lacks
// it.
const Kernel& find_kernel(std::string_view name);
// The one that SLUICE_SIMD names, else the best that runs here. The environment is read at the
// first call that succeeds. Throws as find_kernel.
const Kernel& chosen_kernel();

// The public functions on a given kernel.
void step_tile_on(const Kernel& kernel, const OptimizerConfig& config, const Step& step,
                  const Tile& tile);
void step_on(const Kernel& kernel, std::span<const Group> groups, const Step& step,
             Executor& executor);
GradientStats gradient_stats_on(const Kernel& kernel, std::span<const GradientSpan> gradients,
                                Executor& executor);

}  // namespace sluice::cpu_adam
