#pragma once
// The kernels of this build, and the choice among them. Private to the component and to its tests,
// which compare every kernel with the scalar one.
//
// A kernel does not check its arguments, allocates nothing, throws nothing and runs on the calling
// thread. It takes any length and alignment; streams must not overlap. Formulas and rounding:
// docs/numerics.md. Thread-safe: the list is constant; a kernel touches only the memory in its
// arguments.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "sluice/base/dtype.hpp"
#include "sluice/base/executor.hpp"
#include "sluice/cpu_adam/optimizer.hpp"
#include "sluice/cpu_adam/step_arguments.hpp"

namespace sluice::cpu_adam {

// Returns true if every value that it wrote is finite; false if one may not be (finite_check.hpp).
using StepFunction = bool (*)(const StepConstants&, const TileArguments&);

// Number of fp64 accumulators for squares: element i of a chunk goes to accumulator
// i % kAccumulators. It is a whole number of vectors for every kernel, and gives enough independent
// sums to hide the latency of the addition.
inline constexpr std::size_t kAccumulators = 32;
using Accumulators = std::array<double, kAccumulators>;
// Adds the squares of `count` elements to `sums`; the first element belongs to accumulator 0.
using SumFunction = void (*)(const void* gradient, std::size_t count, Accumulators& sums);

// Index of a type among the alternatives of GradientSpan.
template <class G>
inline constexpr std::size_t kGradientIndex = std::is_same_v<G, float>  ? 0
                                              : std::is_same_v<G, Bf16> ? 1
                                                                        : 2;

struct Kernel {
  std::string_view name;
  std::int64_t highway_target;                 // 0: runs everywhere
  StepFunction step[std::size(kRules)][2][2];  // [Rule][MasterLayout][0: fp32 moments, 1: bf16]
  SumFunction sum_squares[3];                  // [kGradientIndex]
};

// Makes a kernel of Step<R, layout, moment type>::run and SumSquares<G>::run for every combination.
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
  static_assert(sizeof...(Rules) == std::size(kRules));
  (add(Rules{}), ...);
  kernel.sum_squares[kGradientIndex<float>] = &SumSquares<float>::run;
  kernel.sum_squares[kGradientIndex<Bf16>] = &SumSquares<Bf16>::run;
  kernel.sum_squares[kGradientIndex<Fp16>] = &SumSquares<Fp16>::run;
  return kernel;
}

// The kernels, each defined in its source file.
const Kernel& scalar_kernel();
std::span<const Kernel> vector_kernels();  // best first; empty where only the scalar one exists

// All kernels of this build, best first, the scalar one last.
std::span<const Kernel> kernels();
// Whether this CPU supports the kernel.
bool runs_here(const Kernel& kernel);
// The kernel `name`. Throws InvalidArgument with the list of kernels when the name is unknown or
// the CPU does not support the kernel.
const Kernel& find_kernel(std::string_view name);
// The kernel named by SLUICE_SIMD, else the best that this CPU supports. The environment is read at
// the first call that succeeds. Throws as find_kernel().
const Kernel& chosen_kernel();

// The public functions, on a given kernel.
bool step_tile_on(const Kernel& kernel, const OptimizerConfig& config, const Step& step,
                  const Tile& tile);
bool step_on(const Kernel& kernel, std::span<const Group> groups, const Step& step,
             Executor& executor);
GradientStats gradient_stats_on(const Kernel& kernel, std::span<const GradientSpan> gradients,
                                Executor& executor);

}  // namespace sluice::cpu_adam
