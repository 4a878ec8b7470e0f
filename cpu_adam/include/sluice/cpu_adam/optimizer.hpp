#pragma once
// Optimizers on host memory. One pass reads the gradient, unscales and clips it, updates master and
// moments in fp32, and writes the 16-bit weight. Also: squared norm and finite check of a gradient.
//
// Formulas and rounding: docs/numerics.md (installed with the documentation). All kernels (AVX-512,
// AVX2, NEON, scalar) give equal bits, for any number of threads and any split into tiles.
//
// Bf16 and Fp16 (sluice/base/dtype.hpp) have the bits of PyTorch's types: memory of c10::BFloat16
// or uint16_t may be cast to them.
//
// Thread-safe: values and free functions without mutable state, on memory that does not overlap.

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

// Form of weight decay. `l2`: added to the gradient (PyTorch's weight_decay). `decoupled`: AdamW,
// Loshchilov & Hutter 2019, Alg. 2.
enum class WeightDecay { l2, decoupled };

// Rules for every configuration below: values are finite; rates, decays and epsilons are at least
// 0. A rate in [-1e-12, 0), which is rounding of a schedule that ends at 0, counts as 0.
// `maximize` negates the gradient before decay is added, as in PyTorch.

// Adam, Kingma & Ba 2015, Alg. 1; amsgrad: Reddi, Kale & Kumar 2018, Alg. 2, in PyTorch's form.
// Moments: m, v, and with amsgrad the largest v so far. The defaults are AdamW; torch.optim.Adam
// has WeightDecay::l2.
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
  bool operator==(const AdamConfig&) const = default;
};

// Duchi, Hazan & Singer 2011, as torch.optim.Adagrad. Moment: the sum of squares; the caller
// initialises the sum with PyTorch's initial_accumulator_value. Decay is L2.
struct AdagradConfig {
  double learning_rate = 1e-2;
  double learning_rate_decay = 0.0;  // divides the rate of step t by 1 + (t - 1) * decay
  double epsilon = 1e-10;
  double weight_decay = 0.0;
  bool maximize = false;
  bool operator==(const AdagradConfig&) const = default;
};

// Chen et al. 2023, Alg. 2. Moment: m. Decay is decoupled.
struct LionConfig {
  double learning_rate = 1e-4;
  double beta1 = 0.9;   // for the update, in [0, 1)
  double beta2 = 0.99;  // for the moment, in [0, 1)
  double weight_decay = 0.0;
  bool maximize = false;
  bool operator==(const LionConfig&) const = default;
};

// torch.optim.SGD. Moment: with momentum, the momentum buffer, which the first step sets to its
// gradient; none without momentum. Decay is L2.
struct SgdConfig {
  double learning_rate = 1e-3;
  double momentum = 0.0;   // at least 0
  double dampening = 0.0;  // must be 0 with nesterov
  double weight_decay = 0.0;
  bool nesterov = false;  // needs momentum
  bool maximize = false;
  bool operator==(const SgdConfig&) const = default;
};

using OptimizerConfig = std::variant<AdamConfig, AdagradConfig, LionConfig, SgdConfig>;

// The most moments that any optimizer has.
inline constexpr std::size_t kMostMoments = 3;
// Number of moments of this optimizer: 0 to kMostMoments.
std::size_t moment_count(const OptimizerConfig& config);
// Throws InvalidArgument with a value that is out of range, non-finite or beyond fp32, as a step
// with it would.
void check_values(const OptimizerConfig& config);

// An fp32 master in two halves, 4 bytes per element instead of 6 for master and weight. `weight` is
// the bf16 weight that the device computes with: the value rounded to nearest, ties away from zero
// (ties to even would need one more state than the bits have). `low` holds the lower 16 bits of the
// value. Both halves together give the exact value.
struct SplitMaster {
  std::span<Bf16> weight;
  std::span<std::uint16_t> low;
};

// One element of a split master. split() and join() are exact in both directions, except that every
// NaN becomes 0x7FC00000. Initialise a split master with split(), element by element.
struct SplitValue {
  Bf16 weight;
  std::uint16_t low = 0;
};
SplitValue split(float value);
float join(SplitValue value);

// Memory of a tile; spans never own. Gradients and weights may be fp32, bf16 or fp16.
// std::monostate: no weight is written. A split master requires std::monostate, because it contains
// the weight.
using MasterSpan = std::variant<std::span<float>, SplitMaster>;
using MomentSpan = std::variant<std::span<float>, std::span<Bf16>>;
using GradientSpan =
    std::variant<std::span<const float>, std::span<const Bf16>, std::span<const Fp16>>;
using WeightSpan = std::variant<std::monostate, std::span<float>, std::span<Bf16>, std::span<Fp16>>;

// A run of elements of one tensor. All spans in use have equal lengths and do not overlap.
// Addresses need the alignment of their type; 64 bytes is fastest. Master and moments are updated
// in place; the weight is only written. The caller owns the memory until the call has returned.
struct Tile {
  MasterSpan master{};
  // The first moment_count() spans, all of one type, zeroed before the first step; the other spans
  // are empty. bf16 moments are rounded stochastically.
  std::array<MomentSpan, kMostMoments> moments{};
  GradientSpan gradient{};
  WeightSpan weight{};
  // Number of the first element, counted over all parameters of a model. Together with Step::seed
  // and Step::step it keys the stochastic rounding, so that a split into tiles changes no bit.
  // Unused with fp32 moments. With bf16 moments, tiles of equal numbers get equal noise.
  std::uint64_t first_element = 0;
};

struct Step {
  // 1 + the number of updates of these tiles so far. A step skipped for a non-finite gradient does
  // not count.
  std::int64_t step = 1;
  // Factor for each gradient element, applied first; finite. For a gradient that is still
  // multiplied by a loss scale, the engine takes min(1, max_norm / (norm + 1e-6)) / scale, as
  // PyTorch clips, with norm = sqrt(squared_norm) / scale.
  float gradient_factor = 1.0F;
  std::uint64_t seed = 0;  // for stochastic rounding only

  bool operator==(const Step&) const = default;
};

// Tensors that share hyper-parameters, like PyTorch's parameter groups. Owns nothing but the
// configuration.
struct Group {
  OptimizerConfig config;
  std::span<const Tile> tiles;
};

// Updates one tile on the calling thread; never starts work elsewhere. Returns false if a master,
// moment or weight that it wrote is non-finite: a damaged state, which a caller must not save.
// Finite inputs can give it: an epsilon of 0 where every gradient was 0 (0 / 0), or a rate that is
// too large. Not noticed: a second or third moment that alone becomes infinite, which takes a
// gradient element beyond 1e19. Weights are rounded to nearest even; a NaN is stored as 0x7FC00000.
// A non-finite gradient element makes only its own states non-finite (with Lion, an infinite
// element makes only the moment non-finite); check the norm first to skip such steps. Throws
// InvalidArgument, before anything is written, for: spans of different lengths or overlapping,
// moments that are missing or superfluous for the optimizer, a weight beside a split master, step <
// 1, a config value or gradient_factor out of range, non-finite, or beyond fp32. Thread-safe for
// tiles that do not overlap.
bool step_tile(const OptimizerConfig& config, const Step& step, const Tile& tile);
// step_tile() of a part of a step over `step_elements` elements, whose other parts the caller runs
// on other threads. Weights of a large step bypass the caches, as in step().
bool step_part(const OptimizerConfig& config, const Step& step, const Tile& part,
               std::size_t step_elements);

// Updates all tiles on the executor's threads, in fixed chunks, with the bits of step_tile() on
// each tile. Blocks. Throws as step_tile(), naming group and tile, before any tile is written.
// Tiles must not overlap each other; this is not checked. Consecutive tiles that are adjacent in
// every span (with bf16 moments also in first_element), like the tensors of a flat buffer, are
// joined. Must not be called from a body of the executor.
bool step(const OptimizerConfig& config, const Step& step, const Tile& tile, Executor& executor);
bool step(std::span<const Group> groups, const Step& step, Executor& executor);

// The first element of a tile whose master, moments or weight is non-finite; the number of elements
// if there is none. For the message after a step that returned false. Reads the whole tile, on the
// calling thread. Throws InvalidArgument as step_tile().
std::size_t first_non_finite(const OptimizerConfig& config, const Tile& tile);

// Sum of squares in fp64, and whether every element is finite. The sum adds fixed chunks of 16,384
// elements in order, so the value depends neither on threads nor on kernels. gradient_stats()
// blocks and must not be called from a body of the executor.
struct GradientStats {
  double squared_norm = 0;
  bool finite = true;
};
GradientStats gradient_stats(GradientSpan gradient, Executor& executor);
// Statistics of several gradients together, for the norm of all parameters: the sum, in the given
// order, of each gradient's squared norm.
GradientStats gradient_stats(std::span<const GradientSpan> gradients, Executor& executor);

// Names of the kernels in this build, best first, "scalar" last.
std::vector<std::string> kernel_names();
// The kernel in use: the one named by the environment variable SLUICE_SIMD, else the best that the
// CPU supports. An empty variable counts as unset. kernel_in_use(), step(), step_tile() and
// gradient_stats() throw InvalidArgument with the list of kernels when the name is unknown or the
// CPU does not support the kernel. The environment is read at the first call that succeeds.
std::string_view kernel_in_use();

}  // namespace sluice::cpu_adam
