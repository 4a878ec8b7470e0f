#pragma once
// A step as plain values, for kernels outside this component, such as those of a GPU. step_tile()
// is step_arguments(), and then run_step() of each run.
//
// Thread-safe: values and free functions without shared state, on memory that does not overlap.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sluice/base/dtype.hpp"
#include "sluice/cpu_adam/optimizer.hpp"

namespace sluice::cpu_adam {

// Optimizers with moments of one meaning: states of one are of no use to another. adam: AdamW too.
enum class Rule { adam, amsgrad, adagrad, lion, momentum, sgd };
inline constexpr Rule kRules[] = {Rule::adam, Rule::amsgrad,  Rule::adagrad,
                                  Rule::lion, Rule::momentum, Rule::sgd};
// Number of moments of a rule, as of every configuration with that rule.
std::size_t moment_count(Rule rule);

// The constants of a step, equal for all elements: computed in double, rounded to fp32 once. Fields
// that a rule does not use are 0.
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

// Ordinary stores, or stores that bypass the caches. A streaming store does not fetch the line that
// it overwrites; a weight larger than the caches is not read again soon. step_arguments() asks for
// ordinary stores; who asks for streams flushes them before other threads read the weight
// (hwy::FlushStream). A GPU's kernel ignores it.
enum class WeightStore { cached, streaming };
enum class WeightType { none, fp32, bf16, fp16 };

// Key of the noise for stochastic rounding: 32 bits for each element, from the low half of the
// element's number and two keys, which stand for the seed, the step and the number's upper half.
struct RoundingKey {
  std::uint32_t first = 0;  // low half of the first element's number; must not wrap in a run
  std::uint32_t keys[2] = {0, 0};
};

enum class MasterLayout { fp32, split };

// One run of elements. Owns nothing.
struct TileArguments {
  void* master;        // fp32, or the bf16 weight of a split master
  std::uint16_t* low;  // lower halves of a split master, else null
  std::array<void*, kMostMoments> moments;
  const void* gradient;
  DType gradient_type;
  void* weight;
  WeightType weight_type;
  std::size_t count;
  WeightStore store;
  RoundingKey rounding;
};

// One run of elements of a step, for one launch.
struct StepArguments {
  Rule rule;
  MasterLayout master;
  bool bf16_moments;
  StepConstants constants;
  TileArguments tile;
};

// The step of `tile` as values, after the checks of step_tile(), whose InvalidArgument it throws.
// Reads and writes none of the tile's memory, so the spans may be addresses of a GPU. Gives one
// run, and one more wherever the upper half of an element's number (Tile::first_element + i)
// changes within the tile. Empty for a tile without elements.
std::vector<StepArguments> step_arguments(const OptimizerConfig& config, const Step& step,
                                          const Tile& tile);

// Steps a run in the host's memory on the calling thread, with the kernel in use, for stand-ins of
// a GPU. Returns false if a value that
// it wrote is non-finite, with the limits of step_tile(). Throws as kernel_in_use().
bool run_step(const StepArguments& step);

}  // namespace sluice::cpu_adam
