#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <string>

#include "bound_gpt2.hpp"
#include "counting_allocator.hpp"
#include "sluice/base/error.hpp"
#include "sluice/models/gpt2.hpp"
#include "sluice/models/gpt2_layout.hpp"
#include "sluice/offload/memory_pool.hpp"

namespace sluice::models {
namespace {

using test::CountingAllocator;
using torch::Tensor;

struct Shape {
  std::int64_t width;
  std::int64_t batch;
  std::int64_t length;
  std::int64_t vocabulary;
  torch::Dtype dtype;
  double p;
  config::Activation activation = config::Activation::gelu_new;
};

struct Peaks {
  std::uint64_t forward_bytes = 0;
  std::uint64_t backward_bytes = 0;
  std::uint64_t keeping_bytes = 0;
  std::uint64_t kept_bytes = 0;  // without the output
};

// Bytes that one unit takes beyond its input, weights, gradient and its output's gradient.
class MeasuredUnits {
 public:
  explicit MeasuredUnits(const Shape& shape)
      : shape_(shape),
        gpt2_(model_of(shape), shape.dtype),
        tokens_(test::random_tokens(gpt2_.model, shape.batch, shape.length)) {
    gpt2_.bind_gradients();
  }

  const config::ModelConfig& model() const { return gpt2_.model; }

  Peaks peaks(std::size_t unit) {
    const bool is_head = unit + 1 == gpt2_.units.size();
    Tensor x = unit == 0 ? tokens_ : torch::randn(state_sizes()).to(shape_.dtype);
    const Tensor of_output =
        is_head ? torch::ones({}) : torch::randn(state_sizes()).to(shape_.dtype);
    Peaks result;
    CountingAllocator& allocator = CountingAllocator::install();
    allocator.start();
    {
      const torch::NoGradGuard no_grad;
      const Tensor y = run(unit, x);
      result.forward_bytes = allocator.peak_bytes();
    }
    if (unit > 0) x.requires_grad_();
    allocator.start();
    const Tensor y = run(unit, x);
    result.keeping_bytes = allocator.peak_bytes();
    result.kept_bytes = allocator.live_bytes() - offload::pool_bytes(y.nbytes());
    y.backward(of_output);
    result.backward_bytes = allocator.peak_bytes();
    return result;
  }

 private:
  static config::ModelConfig model_of(const Shape& shape) {
    config::ModelConfig model;
    model.n_layer = 1;
    model.n_embd = shape.width;
    model.n_head = shape.width / 64;
    model.n_positions = shape.length;
    model.vocab_size = shape.vocabulary;
    model.activation_function = shape.activation;
    model.embd_pdrop = shape.p;
    model.attn_pdrop = shape.p;
    model.resid_pdrop = shape.p;
    return model;
  }

  std::vector<std::int64_t> state_sizes() const {
    return {shape_.batch, shape_.length, shape_.width};
  }
  Tensor run(std::size_t unit, const Tensor& x) {
    UnitModule& module = *gpt2_.modules[unit];
    return unit + 1 == gpt2_.units.size() ? module.loss(x, tokens_)
                                          : module.forward(x, DropoutKey{true, 1, 1, 0});
  }

  Shape shape_;
  test::BoundGpt2 gpt2_;
  Tensor tokens_;
};

// The formula names every tensor. oneDNN's scratch depends on the processor and is an estimate. The
// planner adds this margin for scratch and small tensors (kSmallTensorsBytes in
// engine/plan/src/step/step_model.hpp).
constexpr std::uint64_t kAllowanceBytes = 1U << 20U;

// `may_lack_bytes`: planned bytes that this processor need not take.
void expect_within(std::uint64_t measured_bytes, std::uint64_t planned_bytes,
                   std::uint64_t may_lack_bytes, const std::string& what) {
  EXPECT_LE(measured_bytes, planned_bytes + kAllowanceBytes) << what;
  EXPECT_GE(static_cast<double>(measured_bytes + may_lack_bytes + kAllowanceBytes),
            0.8 * static_cast<double>(planned_bytes))
      << what;
}

// The most scratch of a thread in oneDNN. On a processor without fp16 products, LibTorch's own
// products take no scratch.
constexpr std::uint64_t kScratchBytes = 1'721'344;

void check(const Shape& shape) {
  CountingAllocator::install();
  const int threads_before = at::get_num_threads();
  MeasuredUnits units(shape);
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    const std::uint64_t may_lack_bytes =
        shape.dtype == torch::kFloat16 ? static_cast<std::uint64_t>(threads) * kScratchBytes : 0;
    const DType dtype = shape.dtype == torch::kBFloat16  ? DType::bf16
                        : shape.dtype == torch::kFloat16 ? DType::fp16
                                                         : DType::fp32;
    for (std::size_t unit = 0; unit < 3; ++unit) {
      const Peaks measured = units.peaks(unit);
      const UnitWorkspace planned = unit_workspace(
          units.model(), unit, static_cast<std::uint64_t>(shape.batch), dtype, threads);
      const std::string what =
          "unit " + std::to_string(unit) + ", C " + std::to_string(shape.width) + ", B " +
          std::to_string(shape.batch) + ", T " + std::to_string(shape.length) + ", V " +
          std::to_string(shape.vocabulary) + ", " + std::string(name_of(dtype)) + ", p " +
          std::to_string(shape.p) + ", threads " + std::to_string(threads);
      expect_within(measured.forward_bytes, planned.forward_bytes, may_lack_bytes,
                    what + ": forward");
      expect_within(measured.backward_bytes, planned.backward_bytes, may_lack_bytes,
                    what + ": backward");
      if (unit == 2) continue;  // the head keeps nothing: its backward follows at once
      expect_within(measured.keeping_bytes, planned.keeping_bytes, may_lack_bytes,
                    what + ": keeping");
      expect_within(measured.kept_bytes, planned.kept_bytes, may_lack_bytes, what + ": kept");
    }
  }
  at::set_num_threads(threads_before);
}

constexpr auto kBf16 = torch::kBFloat16;
constexpr auto kFp32 = torch::kFloat32;
constexpr auto kFp16 = torch::kFloat16;

// Without AVX-512, LibTorch multiplies bf16 element by element: large sizes take ten minutes there.
bool multiplies_bf16_fast() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bw") != 0;
#else
  return true;
#endif
}

TEST(UnitWorkspace, HoldsInBf16) {
  std::vector<std::int64_t> widths = {64, 128, 256};
  std::vector<std::pair<std::int64_t, std::int64_t>> sizes = {{1, 32}, {2, 64}, {1, 200}, {4, 128}};
  if (multiplies_bf16_fast()) {
    widths.insert(widths.end(), {512, 768, 1024});
    sizes.insert(sizes.end(), {{2, 512}, {8, 256}});
  }
  for (const std::int64_t width : widths)
    for (const auto& [batch, length] : sizes) check({width, batch, length, 256, kBf16, 0.0});
}

// Few and small sizes: fp16 products are slow on processors without them.
TEST(UnitWorkspace, HoldsInFp16) {
  for (const std::int64_t width : {64, 256}) {
    for (const auto& [batch, length] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 32}, {3, 64}, {1, 200}, {2, 256}}) {
      check({width, batch, length, 256, kFp16, 0.0});
    }
  }
  check({128, 3, 64, 256, kFp16, 0.1});
  check({64, 1, 32, 50257, kFp16, 0.0});
  check({128, 2, 64, 256, kFp16, 0.0, config::Activation::relu});
}

TEST(UnitWorkspace, HoldsInFp32) {
  for (const std::int64_t width : {64, 256, 1024}) {
    for (const auto& [batch, length] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {1, 32}, {1, 200}, {4, 128}, {2, 512}}) {
      check({width, batch, length, 256, kFp32, 0.0});
    }
  }
}

TEST(UnitWorkspace, HoldsWithDropout) {
  for (const std::int64_t width : {64, 256, 768}) {
    for (const auto& [batch, length] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 32}, {3, 64}, {4, 128}, {2, 512}}) {
      if (multiplies_bf16_fast() || width * batch * length <= 131072)
        check({width, batch, length, 256, kBf16, 0.1});
      check({width, batch, length, 256, kFp32, 0.1});
    }
  }
}

TEST(UnitWorkspace, HoldsForALargeVocabulary) {
  check({64, 1, 32, 50257, kBf16, 0.0});
  check({256, 4, 128, 50257, kFp32, 0.0});
  if (multiplies_bf16_fast()) {
    check({256, 4, 128, 50257, kBf16, 0.0});
    check({1024, 1, 64, 50257, kBf16, 0.0});
  }
  check({128, 2, 100, 1000, kBf16, 0.1});
}

TEST(UnitWorkspace, HoldsForEveryActivation) {
  for (const auto activation : {config::Activation::relu, config::Activation::gelu}) {
    check({256, 4, 128, 256, kBf16, 0.0, activation});
  }
}

TEST(UnitWorkspace, UnitsAndSizesThatDoNotExistAreRefused) {
  const config::ModelConfig model;
  EXPECT_THROW(unit_workspace(model, 14, 1, DType::bf16, 1), InvalidArgument);
  EXPECT_THROW(unit_workspace(model, 0, 0, DType::bf16, 1), InvalidArgument);
  EXPECT_THROW(unit_workspace(model, 0, 1, DType::bf16, 0), InvalidArgument);
  EXPECT_THROW(estimate_gpu_workspaces(model, 1, 3), InvalidArgument);
}

}  // namespace
}  // namespace sluice::models
