#include "sluice/cpu_adam/adam.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <string>

#include "kernels.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"

namespace sluice::cpu_adam {

namespace {

// The unit of work of step(): 1.75 MiB of fp32 states with 16-bit gradient and weight, so that its
// start costs nothing beside it and the threads end together.
constexpr std::size_t kChunk = 65'536;

// From here on (28 MiB of states, gradient and weight) the weight would be out of a core's caches
// anyway before the copy to the device reads it.
constexpr std::size_t kStreamingCount = 1'048'576;
constexpr std::uintptr_t kStreamingAlignment = 64;

std::string text_of(double value) {
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return {buffer.data(), end};
}

void check_not_negative(double value, const char* name) {
  SLUICE_CHECK(std::isfinite(value) && value >= 0, std::string("Adam: ") + name + " is " +
                                                       text_of(value) +
                                                       "; it must be finite and at least 0");
}

void check_beta(double value, const char* name) {
  SLUICE_CHECK(value >= 0 && value < 1,  // false for NaN
               std::string("Adam: ") + name + " is " + text_of(value) + "; it must be in [0, 1)");
}

float to_constant(double value, const char* name) {
  const auto rounded = static_cast<float>(value);
  SLUICE_CHECK(std::isfinite(rounded),
               std::string("Adam: ") + name + " is " + text_of(value) + ", which fp32 cannot hold");
  return rounded;
}

StepConstants constants_of(const AdamConfig& config, const AdamStep& step) {
  check_not_negative(config.learning_rate, "learning_rate");
  check_beta(config.beta1, "beta1");
  check_beta(config.beta2, "beta2");
  check_not_negative(config.epsilon, "epsilon");
  check_not_negative(config.weight_decay, "weight_decay");
  SLUICE_CHECK(step.step >= 1,
               "Adam: step is " + std::to_string(step.step) + "; steps count from 1");
  SLUICE_CHECK(std::isfinite(step.gradient_factor),
               "Adam: gradient_factor is " + text_of(step.gradient_factor) +
                   "; it must be finite: skip the step when the norm is not");

  // Bias corrections: Kingma & Ba 2015, section 3.
  const auto t = static_cast<double>(step.step);
  const double correction1 = config.bias_correction ? 1 - std::pow(config.beta1, t) : 1;
  const double correction2 = config.bias_correction ? 1 - std::pow(config.beta2, t) : 1;
  const bool decoupled = config.decay == WeightDecay::decoupled;
  const double keep = decoupled ? 1 - config.learning_rate * config.weight_decay : 1;
  return {
      .gradient_factor = step.gradient_factor,
      .l2 = to_constant(decoupled ? 0 : config.weight_decay, "weight_decay"),
      .keep = to_constant(keep, "1 - learning_rate * weight_decay"),
      .beta1 = static_cast<float>(config.beta1),
      .one_minus_beta1 = static_cast<float>(1 - config.beta1),
      .beta2 = static_cast<float>(config.beta2),
      .one_minus_beta2 = static_cast<float>(1 - config.beta2),
      .sqrt_bias_correction2 = static_cast<float>(std::sqrt(correction2)),
      .epsilon = to_constant(config.epsilon, "epsilon"),
      .step_size =
          to_constant(config.learning_rate / correction1, "learning_rate / (1 - beta1^step)"),
  };
}

struct Stream {
  const char* name;
  const std::byte* begin;
  std::size_t count;
  std::size_t element_bytes;
};

template <class T>
Stream stream_of(const char* name, std::span<T> values) {
  return {name, reinterpret_cast<const std::byte*>(values.data()), values.size(), sizeof(T)};
}
// A weight that is not written overlaps nothing and has any length.
Stream stream_of(const char* name, std::monostate) {
  return {name, nullptr, 0, 0};
}

void check_spans(const AdamTile& tile) {
  const auto gradient = std::visit([](auto s) { return stream_of("gradient", s); }, tile.gradient);
  const auto weight = std::visit([](auto s) { return stream_of("weight", s); }, tile.weight);
  const std::array<Stream, 5> streams{stream_of("master", tile.master),
                                      stream_of("moment1", tile.moment1),
                                      stream_of("moment2", tile.moment2), gradient, weight};
  const std::size_t used = weight.element_bytes == 0 ? 4 : 5;
  for (std::size_t i = 0; i < used; ++i) {
    const Stream& a = streams[i];
    SLUICE_CHECK(a.count == tile.master.size(),
                 std::string("Adam: ") + a.name + " has " + std::to_string(a.count) +
                     " elements, master has " + std::to_string(tile.master.size()));
    for (std::size_t j = 0; j < i; ++j) {
      const Stream& b = streams[j];
      // std::less orders pointers into different arrays, which `<` does not.
      const std::less<const std::byte*> before;
      const bool overlap = a.count > 0 && before(a.begin, b.begin + b.count * b.element_bytes) &&
                           before(b.begin, a.begin + a.count * a.element_bytes);
      SLUICE_CHECK(!overlap, std::string("Adam: ") + b.name + " and " + a.name +
                                 " share memory; every span needs its own");
    }
  }
}

// A step that has been checked: what to run, on which memory. Chunks of it may run on any thread.
struct Plan {
  StepConstants constants;
  StepFunction function;
  TileArguments tile;
  std::size_t gradient_bytes;  // of an element
  std::size_t weight_bytes;    // of an element; 0 when none is written

  void run(std::size_t first, std::size_t count) const {
    TileArguments part = tile;
    part.master += first;
    part.moment1 += first;
    part.moment2 += first;
    part.gradient = static_cast<const std::byte*>(part.gradient) + first * gradient_bytes;
    if (weight_bytes != 0)
      part.weight = static_cast<std::byte*>(part.weight) + first * weight_bytes;
    part.count = count;
    function(constants, part);
  }
};

Plan plan_of(const Kernel& kernel, const AdamConfig& config, const AdamStep& step,
             const AdamTile& tile) {
  const StepConstants constants = constants_of(config, step);
  check_spans(tile);
  const bool l2 = config.decay == WeightDecay::l2 && config.weight_decay != 0;
  Plan plan{constants,
            kernel.step[tile.gradient.index()][tile.weight.index()][l2 ? 1 : 0],
            {tile.master.data(), tile.moment1.data(), tile.moment2.data(), nullptr, nullptr,
             tile.master.size(), WeightStore::cached},
            0,
            0};
  std::visit(
      [&plan](auto gradient) {
        plan.tile.gradient = gradient.data();
        plan.gradient_bytes = sizeof(gradient[0]);
      },
      tile.gradient);
  std::visit(
      [&plan]<class W>(W weight) {
        if constexpr (!std::is_same_v<W, std::monostate>) {
          plan.tile.weight = weight.data();
          plan.weight_bytes = sizeof(weight[0]);
        }
      },
      tile.weight);
  const bool aligned =
      reinterpret_cast<std::uintptr_t>(plan.tile.weight) % kStreamingAlignment == 0;
  if (aligned && plan.weight_bytes != 0 && plan.tile.count >= kStreamingCount) {
    plan.tile.store = WeightStore::streaming;
  }
  return plan;
}

}  // namespace

void step_tile_on(const Kernel& kernel, const AdamConfig& config, const AdamStep& step,
                  const AdamTile& tile) {
  const Plan plan = plan_of(kernel, config, step, tile);
  plan.run(0, plan.tile.count);
}

void step_on(const Kernel& kernel, const AdamConfig& config, const AdamStep& step,
             const AdamTile& tile, Executor& executor) {
  const Plan plan = plan_of(kernel, config, step, tile);
  const std::size_t count = plan.tile.count;
  executor.for_each(ceil_div(count, kChunk), [&](std::size_t chunk) {
    const std::size_t first = chunk * kChunk;
    plan.run(first, std::min(kChunk, count - first));
  });
}

void step_tile(const AdamConfig& config, const AdamStep& step, const AdamTile& tile) {
  step_tile_on(chosen_kernel(), config, step, tile);
}

void step(const AdamConfig& config, const AdamStep& step, const AdamTile& tile,
          Executor& executor) {
  step_on(chosen_kernel(), config, step, tile, executor);
}

}  // namespace sluice::cpu_adam
