#pragma once
// Optimizers on host memory, one pass: gradient in, unscale and clip, update of the master and the
// moments in fp32, 16-bit weight out. Plus the squared norm and finite check of a gradient.
//
// Formulas and rounding: docs/numerics.md (installed with the documentation). All kernels (AVX-512,
// AVX2, NEON, scalar) give the same bits, for any number of threads and any split into tiles.
//
// Bf16 and Fp16 (sluice/base/dtype.hpp) are 16 bits that mean what PyTorch's types mean: memory of
// c10::BFloat16 or uint16_t may be cast to them.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sluice/base/dtype.hpp"
#include "sluice/base/error.hpp"  // InvalidArgument
#include "sluice/base/executor.hpp"

namespace sluice::cpu_adam {

// How weight decay enters. `l2`: added to the gradient (PyTorch's weight_decay). `decoupled`:
// AdamW, Loshchilov & Hutter 2019, Alg. 2.
enum class WeightDecay { l2, decoupled };

// In all of these: every value finite; rates, decays and epsilons at least 0. `maximize` negates
// the gradient before decay is added, as in PyTorch.

// Adam, Kingma & Ba 2015, Alg. 1; amsgrad: Reddi, Kale & Kumar 2018, Alg. 2, as PyTorch has it.
// Moments: m, v, and with amsgrad the largest v so far. As it stands here it is AdamW;
// torch.optim.Adam has WeightDecay::l2.
struct AdamConfig {
  double learning_rate = 1e-3;
  double beta1 = 0.9;    // in [0, 1)
  double beta2 = 0.999;  // in [0, 1)
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  WeightDecay decay = WeightDecay::decoupled;
  bool bias_correction = true;
  bool amsgrad = false;
  bool maximize = false;
};

// Duchi, Hazan & Singer 2011, as torch.optim.Adagrad. Moment: the sum of squares, which begins at
// what PyTorch calls initial_accumulator_value. Decay is L2.
struct AdagradConfig {
  double learning_rate = 1e-2;
  double learning_rate_decay = 0.0;  // the rate of step t is divided by 1 + (t - 1) * this
  double epsilon = 1e-10;
  double weight_decay = 0.0;
  bool maximize = false;
};

// Chen et al. 2023, Alg. 2. Moment: m. Decay is decoupled.
struct LionConfig {
  double learning_rate = 1e-4;
  double beta1 = 0.9;   // of the update, in [0, 1)
  double beta2 = 0.99;  // of the moment, in [0, 1)
  double weight_decay = 0.0;
  bool maximize = false;
};

// torch.optim.SGD. Moment: the momentum buffer, which the first step sets to its gradient; none
// without momentum. Decay is L2.
struct SgdConfig {
  double learning_rate = 1e-3;
  double momentum = 0.0;   // at least 0
  double dampening = 0.0;  // 0 with nesterov
  double weight_decay = 0.0;
  bool nesterov = false;  // needs momentum
  bool maximize = false;
};

using OptimizerConfig = std::variant<AdamConfig, AdagradConfig, LionConfig, SgdConfig>;

// The most moments that any optimizer has.
inline constexpr std::size_t kMostMoments = 3;
// How many moments this one has: 0 to kMostMoments.
std::size_t moment_count(const OptimizerConfig& config);

// A master whose upper half is the bf16 weight that the device computes with: together exactly an
// fp32 value, in 4 bytes instead of 6. `weight` is the value rounded to nearest, ties away from
// zero (to even would need one more state than the bits have); `low` the value's lower 16 bits.
struct SplitMaster {
  std::span<Bf16> weight;
  std::span<std::uint16_t> low;
};

// Exact in both directions, but for NaN: they become the one of 0x7FC00000. A new split master is
// made with this, element by element.
struct SplitValue {
  Bf16 weight;
  std::uint16_t low = 0;
};
SplitValue split(float value);
float join(SplitValue value);

// Element types; spans never own. Gradients and weights may be fp32, bf16, fp16; std::monostate: no
// copy of the weight is written (with a split master there is none: it is one).
using MasterSpan = std::variant<std::span<float>, SplitMaster>;
using MomentSpan = std::variant<std::span<float>, std::span<Bf16>>;
using GradientSpan =
    std::variant<std::span<const float>, std::span<const Bf16>, std::span<const Fp16>>;
using WeightSpan = std::variant<std::monostate, std::span<float>, std::span<Bf16>, std::span<Fp16>>;

// A run of elements of one tensor. All spans that are used have the same number of elements; none
// overlap. Any address that suits the type will do; 64 bytes is fastest. Master and moments are
// updated in place; the weight is only written.
struct Tile {
  MasterSpan master{};
  // The first moment_count() of them, all of one type, 0 before the first step; the others empty.
  // In bf16 they are rounded stochastically.
  std::array<MomentSpan, kMostMoments> moments{};
  GradientSpan gradient{};
  WeightSpan weight{};
  // The number of the first element, counted over all parameters of a model: with Step::seed and
  // Step::step the key of stochastic rounding, so that a split into tiles changes no bit. With fp32
  // moments it means nothing; with bf16 moments tiles of the same numbers have the same noise.
  std::uint64_t first_element = 0;
};

struct Step {
  // 1 + the updates that these tiles have had: a step that was skipped, because the gradient was
  // not finite, does not count.
  std::int64_t step = 1;
  // What every gradient element is multiplied by first; finite. With a loss scale and clipping, of
  // a gradient that is still scaled: norm = sqrt(squared_norm) / scale, and this is
  // min(1, max_norm / norm) / scale.
  float gradient_factor = 1.0F;
  std::uint64_t seed = 0;  // of stochastic rounding; nothing else
};

// Tensors with the same hyper-parameters, as PyTorch's parameter groups.
struct Group {
  OptimizerConfig config;
  std::span<const Tile> tiles;
};

// Updates one tile on the calling thread; never starts work elsewhere. Throws InvalidArgument,
// before anything is written, for: spans of different lengths or overlapping, moments that the
// optimizer does not have or lacks, a weight beside a split master, step < 1, a config value or
// gradient_factor out of range, not finite, or beyond fp32. A non-finite gradient element makes its
// own states non-finite (Lion's moment only, when it is infinite) and nothing else: whoever wants
// steps skipped checks the norm first. A NaN is stored as 0x7FC00000; weights are rounded to
// nearest even. Thread-safe for tiles that do not overlap.
void step_tile(const OptimizerConfig& config, const Step& step, const Tile& tile);

// The same over the executor's threads, split into fixed chunks. Same bits as step_tile on each
// tile. Blocks. Throws as step_tile, naming group and tile, before anything of any tile is written.
// Tiles must not overlap each other; that is not checked. Those that follow each other in memory,
// in every span and in this order (with bf16 moments in first_element too), as the tensors of a
// flat buffer do, are stepped as one.
void step(const OptimizerConfig& config, const Step& step, const Tile& tile, Executor& executor);
void step(std::span<const Group> groups, const Step& step, Executor& executor);

// Sum of squares in fp64 and whether every element is finite. Split into fixed chunks of 16,384
// elements that are added in order, so the value depends neither on threads nor on kernels.
struct GradientStats {
  double squared_norm = 0;
  bool finite = true;
};
GradientStats gradient_stats(GradientSpan gradient, Executor& executor);
// Of several together, as for the norm of all parameters: the sum, in their order, of the values of
// each.
GradientStats gradient_stats(std::span<const GradientSpan> gradients, Executor& executor);

// Names of the kernels this build has, best first, with "scalar" last; and the one in use: the best
// the CPU supports, or the one that the environment variable SLUICE_SIMD names (empty: as if
// unset). This, step() and gradient_stats() throw InvalidArgument with the list when that name is
// unknown or not supported here.
std::vector<std::string> kernel_names();
std::string_view kernel_in_use();

}  // namespace sluice::cpu_adam
