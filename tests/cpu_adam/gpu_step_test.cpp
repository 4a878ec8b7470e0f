// The step on a GPU has the bits of the scalar kernel, and its verdict.

#include "sluice/cpu_adam/gpu_step.hpp"

#include <gtest/gtest.h>

#include <cuda_runtime_api.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "adam_state.hpp"
#include "kernels.hpp"

namespace sluice::cpu_adam {
namespace {

using test::AdamState;
using test::Layout;
using test::Sizes;

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

// A copy of memory of the host, on the GPU.
class GpuCopy {
 public:
  GpuCopy(const void* host, std::size_t size_bytes) : size_bytes_(size_bytes) {
    check(cudaMalloc(&address_, size_bytes));
    check(cudaMemcpy(address_, host, size_bytes, cudaMemcpyHostToDevice));
  }
  ~GpuCopy() { cudaFree(address_); }
  GpuCopy(const GpuCopy&) = delete;
  GpuCopy& operator=(const GpuCopy&) = delete;

  void* address() const { return address_; }
  void copy_back(void* host) const {
    check(cudaMemcpy(host, address_, size_bytes_, cudaMemcpyDeviceToHost));
  }

 private:
  void* address_ = nullptr;
  const std::size_t size_bytes_;
};

// A tile whose spans are copies on the GPU. The host's memory outlives it.
class GpuTile {
 public:
  explicit GpuTile(const Tile& host) : tile_(host) {
    const auto copy = [this](auto& span) { copy_span(span); };
    if (auto* split = std::get_if<SplitMaster>(&tile_.master)) {
      copy(split->weight);
      copy(split->low);
    } else {
      copy(std::get<std::span<float>>(tile_.master));
    }
    for (MomentSpan& moment : tile_.moments) std::visit(copy, moment);
    std::visit(copy, tile_.gradient);
    std::visit(copy, tile_.weight);
  }

  const Tile& tile() const { return tile_; }
  void copy_back() const {
    for (const Copied& copied : copied_) copied.gpu->copy_back(copied.host);
  }

 private:
  struct Copied {
    std::unique_ptr<GpuCopy> gpu;
    void* host;
  };
  static void copy_span(std::monostate&) {}
  template <class T>
  void copy_span(std::span<T>& span) {
    if (span.empty()) return;
    auto gpu = std::make_unique<GpuCopy>(span.data(), span.size_bytes());
    auto* const host = const_cast<std::remove_const_t<T>*>(span.data());  // the gradient's bits
    span = {static_cast<T*>(gpu->address()), span.size()};
    copied_.push_back({std::move(gpu), host});
  }

  Tile tile_;
  std::vector<Copied> copied_;
};

class GpuStep : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0)
      GTEST_SKIP() << "needs an NVIDIA GPU: " << cudaGetErrorString(error);
  }
  // Steps the tile's memory on the GPU. Returns false if a value that it wrote is non-finite.
  static bool step_on_gpu(const OptimizerConfig& config, const Step& step, const Tile& host) {
    const GpuTile gpu(host);
    std::uint32_t non_finite = 0;
    const GpuCopy flag(&non_finite, sizeof non_finite);
    for (const StepArguments& run : step_arguments(config, step, gpu.tile()))
      check(static_cast<cudaError_t>(
          launch_step(run, static_cast<std::uint32_t*>(flag.address()), nullptr)));
    check(cudaDeviceSynchronize());
    gpu.copy_back();
    flag.copy_back(&non_finite);
    EXPECT_LE(non_finite, 1U);
    return non_finite == 0;
  }
  static void expect_scalar_bits(const AdamState& start, const OptimizerConfig& config,
                                 const Layout& layout, DType gradient, WeightType weight,
                                 std::uint64_t first_element = 0) {
    AdamState state = start, expected = start;
    const Step step{.step = 3, .gradient_factor = 0.37F, .seed = 5};
    const auto tile_of = [&](AdamState& of) {
      Tile tile = of.tile(config, layout, gradient, weight, 0, of.count());
      tile.first_element = first_element;
      return tile;
    };
    const bool finite = step_tile_on(scalar_kernel(), config, step, tile_of(expected));
    EXPECT_EQ(step_on_gpu(config, step, tile_of(state)), finite);
    EXPECT_TRUE(state.same_bits(expected))
        << state.count() << " elements, optimizer " << config.index() << ", " << name_of(layout)
        << ", gradient " << name_of(gradient) << ", weight type " << static_cast<int>(weight);
  }
  template <class Body>
  static void for_all_types(const Body& body) {
    for (const OptimizerConfig& config : test::every_optimizer()) {
      for (const Layout& layout : test::kLayouts) {
        for (const DType gradient : test::kGradientTypes) {
          for (const WeightType weight : test::kWeightTypes) body(config, layout, gradient, weight);
        }
      }
    }
  }
};

TEST_F(GpuStep, GivesTheScalarBitsForEveryType) {
  for (const std::size_t count : Sizes{1, 255, 1'000}) {
    AdamState start(count);
    start.fill(static_cast<unsigned>(count));
    for_all_types([&](const auto& config, const Layout& layout, DType gradient, WeightType weight) {
      expect_scalar_bits(start, config, layout, gradient, weight);
    });
  }
}

TEST_F(GpuStep, GivesTheScalarBitsForSpecialValues) {
  const AdamState start = test::special_states();
  for_all_types([&](const auto& config, const Layout& layout, DType gradient, WeightType weight) {
    expect_scalar_bits(start, config, layout, gradient, weight);
  });
}

// More elements than the launch has threads. Any bits: every gradient of 16 bits, values of every
// size, and masters at the ties of bf16 and fp16.
TEST_F(GpuStep, GivesTheScalarBitsForAnyBits) {
  AdamState start(1'000'003);
  std::mt19937 random(9);
  const auto any = [&] { return std::bit_cast<float>(static_cast<std::uint32_t>(random())); };
  for (std::size_t i = 0; i < start.count(); ++i) {
    const std::uint32_t cleared = i % 3 == 0 ? 0U : i % 3 == 1 ? 0xFFFU : 0x7FFFU;
    const auto master = static_cast<std::uint32_t>(random()) & ~cleared;
    start.set(i, std::bit_cast<float>(master), any(), std::abs(any()), any());
    start.gbf.span()[i].bits = start.gfp.span()[i].bits = static_cast<std::uint16_t>(i);
  }
  for (const OptimizerConfig& config : test::every_optimizer()) {
    for (const Layout& layout : test::kLayouts) {
      for (const DType gradient : test::kGradientTypes)
        expect_scalar_bits(start, config, layout, gradient, WeightType::fp16);
    }
  }
  // The weight shows the rounding of the master alone.
  for (const WeightType weight : test::kWeightTypes)
    expect_scalar_bits(start, AdamConfig{.learning_rate = 0}, {}, DType::fp32, weight);
}

TEST_F(GpuStep, GivesTheScalarBitsBeyondFourBillionElements) {
  AdamState start(1'000);
  start.fill(6);
  for (const Layout& layout : test::kLayouts)
    expect_scalar_bits(start, AdamConfig{.amsgrad = true}, layout, DType::bf16, WeightType::bf16,
                       (std::uint64_t{1} << 32U) - 300);
}

TEST_F(GpuStep, TellsOfANonFiniteValueAnywhere) {
  const AdamConfig still{.learning_rate = 0};
  AdamState state(300'000);
  state.fill(7);
  const auto step = [&](AdamState of, WeightType weight) {
    return step_on_gpu(still, {}, of.tile(DType::fp32, weight));
  };
  EXPECT_TRUE(step(state, WeightType::fp16));
  for (const std::size_t at : Sizes{0, 131'072, 299'999}) {
    AdamState bad = state;
    bad.set_gradient(at, std::numeric_limits<float>::infinity());
    EXPECT_FALSE(step(bad, WeightType::none));
  }
  state.set(131'072, 65520, 0, 1, 0);
  EXPECT_FALSE(step(state, WeightType::fp16)) << "infinite as a weight";
  EXPECT_TRUE(step(state, WeightType::bf16));
  state.set(131'072, 3e38F, 3e38F, 1, 0);
  EXPECT_TRUE(step(state, WeightType::none)) << "only the sum of master and moment overflows";
}

TEST_F(GpuStep, LeavesAnEarlierAlarm) {
  AdamState state(100);
  state.fill(8);
  const GpuTile gpu(state.tile());
  std::uint32_t non_finite = 1;
  const GpuCopy flag(&non_finite, sizeof non_finite);
  for (const StepArguments& run : step_arguments({}, {}, gpu.tile()))
    check(static_cast<cudaError_t>(
        launch_step(run, static_cast<std::uint32_t*>(flag.address()), nullptr)));
  flag.copy_back(&non_finite);
  EXPECT_EQ(non_finite, 1U);
}

}  // namespace
}  // namespace sluice::cpu_adam
