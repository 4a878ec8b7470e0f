#pragma once
// Adam and AdamW on host memory, one pass: gradient in, unscale and clip, update of p, m, v in
// fp32, 16-bit weight out. Plus the squared norm and finite check of a gradient.
//
// Formulas: docs/numerics.md. All kernels (scalar, AVX2, AVX-512, ...) give the same bits, for any
// number of threads and any split into tiles.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sluice/base/dtype.hpp"
#include "sluice/base/executor.hpp"

namespace sluice::cpu_adam {

// How weight decay enters. `l2`: added to the gradient (Adam with L2, Kingma & Ba 2015 with
// PyTorch's weight_decay). `decoupled`: AdamW, Loshchilov & Hutter 2019, Alg. 2.
enum class WeightDecay { l2, decoupled };

struct AdamConfig {
  double learning_rate = 1e-3;  // finite, at least 0
  double beta1 = 0.9;           // in [0, 1)
  double beta2 = 0.999;         // in [0, 1)
  double epsilon = 1e-8;        // finite, at least 0
  double weight_decay = 0.0;    // finite, at least 0
  WeightDecay decay = WeightDecay::decoupled;
  bool bias_correction = true;
};

// Gradients and weights by element type; spans never own.
using GradientSpan =
    std::variant<std::span<const float>, std::span<const Bf16>, std::span<const Fp16>>;
// std::monostate: no copy of the weight is written.
using WeightSpan = std::variant<std::monostate, std::span<float>, std::span<Bf16>, std::span<Fp16>>;

// One tile of a step. All spans have the same number of elements; none overlap. Any alignment
// works; 64 bytes is fastest. The master and moments are updated in place; the weight is only
// written.
struct AdamTile {
  std::span<float> master;   // p
  std::span<float> moment1;  // m
  std::span<float> moment2;  // v
  GradientSpan gradient;
  WeightSpan weight;
};

// The step as the caller sees it: which one (from 1) and by what every gradient element is
// multiplied first (1 / loss scale, times the clip factor; finite).
struct AdamStep {
  std::int64_t step = 1;
  float gradient_factor = 1.0F;
};

// Updates one tile on the calling thread; never starts work elsewhere. Throws InvalidArgument,
// before anything is written, for: spans of different lengths or overlapping, step < 1, a config
// value or gradient_factor out of range, not finite, or beyond fp32. A non-finite gradient element
// makes its own p, m, v non-finite and nothing else: whoever wants steps skipped checks the norm
// first. A NaN is stored as 0x7FC00000; the weight is rounded to nearest even. Thread-safe for
// tiles that do not overlap.
void step_tile(const AdamConfig& config, const AdamStep& step, const AdamTile& tile);

// The same over the executor's threads, split into fixed chunks. Same bits as step_tile on the
// whole.
void step(const AdamConfig& config, const AdamStep& step, const AdamTile& tile, Executor& executor);

// Sum of squares in fp64 and whether every element is finite. Split into fixed chunks of 16,384
// elements that are added in order, so the value depends neither on threads nor on kernels.
struct GradientStats {
  double squared_norm = 0;
  bool finite = true;
};
GradientStats gradient_stats(GradientSpan gradient, Executor& executor);

// Names of the kernels this build has, best first, with "scalar" last; and the one in use: the best
// the CPU supports, or the one that the environment variable SLUICE_SIMD names. Throws
// InvalidArgument with the list when that name is unknown or not supported here.
std::vector<std::string> kernel_names();
std::string_view kernel_in_use();

}  // namespace sluice::cpu_adam
