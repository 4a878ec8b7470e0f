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
#include <type_traits>

#include "sluice/base/dtype.hpp"
#include "sluice/base/executor.hpp"
#include "sluice/cpu_adam/adam.hpp"

namespace sluice::cpu_adam {

// Everything about a step that is the same for all elements; computed in double, rounded to fp32
// once.
struct StepConstants {
  float gradient_factor;  // multiplies the gradient first
  float l2;               // weight decay added to the gradient; used by L2::yes only
  float keep;             // 1 - learning rate * decoupled weight decay; 1 without
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float sqrt_bias_correction2;  // sqrt(1 - beta2^step)
  float epsilon;
  float step_size;  // learning rate / (1 - beta1^step)
};

// Ordinary stores, or stores that go around the caches: a weight that is larger than the caches is
// not read again soon, and a streaming store does not fetch the line that it overwrites.
enum class WeightStore { cached, streaming };

// One run of elements; `gradient` and `weight` have the element type of the function they are given
// to.
struct TileArguments {
  float* master;
  float* moment1;
  float* moment2;
  const void* gradient;
  void* weight;
  std::size_t count;
  WeightStore store;
};
using StepFunction = void (*)(const StepConstants&, const TileArguments&);

// Squares are summed in this many fp64 accumulators: element i of a chunk goes to accumulator
// i % kAccumulators. A whole number of vectors of any kernel, and enough independent sums to hide
// the latency of the addition.
inline constexpr std::size_t kAccumulators = 32;
using Accumulators = std::array<double, kAccumulators>;
// Adds the squares of `count` elements, the first of which belongs to accumulator 0.
using SumFunction = void (*)(const void* gradient, std::size_t count, Accumulators& sums);

struct NoWeight {};  // the element type of a weight that is not written
enum class L2 { no, yes };

// Where a type stands among the alternatives of GradientSpan and of WeightSpan.
template <class G>
inline constexpr std::size_t kGradientIndex = std::is_same_v<G, float>  ? 0
                                              : std::is_same_v<G, Bf16> ? 1
                                                                        : 2;
template <class W>
inline constexpr std::size_t kWeightIndex = std::is_same_v<W, NoWeight> ? 0 : kGradientIndex<W> + 1;

struct Kernel {
  std::string_view name;
  std::int64_t highway_target;  // 0: runs everywhere
  StepFunction step[3][4][2];   // [kGradientIndex][kWeightIndex][L2]
  SumFunction sum_squares[3];   // [kGradientIndex]
};

// Step<G, W, L2>::run and SumSquares<G>::run for every combination of types.
template <template <class, class, L2> class Step, template <class> class SumSquares>
constexpr Kernel make_kernel(std::string_view name, std::int64_t highway_target) {
  Kernel kernel{name, highway_target, {}, {}};
  const auto add = [&kernel]<class G, class W>(G, W) {
    StepFunction(&cell)[2] = kernel.step[kGradientIndex<G>][kWeightIndex<W>];
    cell[0] = &Step<G, W, L2::no>::run;
    cell[1] = &Step<G, W, L2::yes>::run;
  };
  const auto add_gradient = [&kernel, &add]<class G>(G gradient) {
    add(gradient, NoWeight{});
    add(gradient, float{});
    add(gradient, Bf16{});
    add(gradient, Fp16{});
    kernel.sum_squares[kGradientIndex<G>] = &SumSquares<G>::run;
  };
  add_gradient(float{});
  add_gradient(Bf16{});
  add_gradient(Fp16{});
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
void step_tile_on(const Kernel& kernel, const AdamConfig& config, const AdamStep& step,
                  const AdamTile& tile);
void step_on(const Kernel& kernel, const AdamConfig& config, const AdamStep& step,
             const AdamTile& tile, Executor& executor);
GradientStats gradient_stats_on(const Kernel& kernel, GradientSpan gradient, Executor& executor);

}  // namespace sluice::cpu_adam
