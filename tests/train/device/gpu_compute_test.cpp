// LibTorch on a GPU: whose memory its tensors have, and that the model computes there what it
// computes on the CPU.

#include "device/gpu_compute.hpp"

#include <gtest/gtest.h>

#include <dlfcn.h>

#include <cmath>
#include <limits>
#include <memory>
#include <thread>

#include "device/gradient_stats.hpp"
#include "device/run_device.hpp"
#include "device/tensor_bytes.hpp"
#include "engine/models/bound_gpt2.hpp"
#include "sluice/offload/cuda_device.hpp"

namespace sluice::train {
namespace {

using models::DropoutKey;
using models::test::BoundGpt2;
using torch::Tensor;

TEST(GpuLibrary, LoadsWithoutAGpu) {
  void* library = ::dlopen("libsluice_train_gpu.so", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << ::dlerror();
  EXPECT_NE(::dlsym(library, kMakeGpuCompute), nullptr);
}

class OnGpu : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const offload::CudaDevices found = offload::find_cuda_devices();
    why_not = "needs an NVIDIA GPU: " + found.why_none;
    if (found.devices.empty()) return;
    gpu = make_run_device(plan::GpuFacts{0, found.devices[0].name}, 256U << 20U, nullptr);
  }
  static void TearDownTestSuite() { gpu = RunDevice(); }
  void SetUp() override {
    if (gpu.device == nullptr) GTEST_SKIP() << why_not;
  }
  static std::uint64_t live_bytes() { return gpu.device->memory().usage().live_bytes; }

  static inline RunDevice gpu;
  static inline std::string why_not;
};

TEST_F(OnGpu, TensorsTakeTheDevicesMemory) {
  const std::uint64_t before = live_bytes();
  {
    const Tensor x = torch::ones({1 << 20}, torch::kCUDA);
    EXPECT_EQ(live_bytes(), before + (4U << 20U));
    EXPECT_EQ(x.sum().item<double>(), 1 << 20);
  }
  EXPECT_EQ(live_bytes(), before);
}

TEST_F(OnGpu, ATensorBeyondTheBudgetIsRefused) {
  EXPECT_THROW(torch::empty({1 << 28}, torch::kCUDA), std::exception);
}

// A thread that was told of no stream, as one that prepares batches.
TEST_F(OnGpu, WorkOfAnotherThreadIsInOrderWithTheComputation) {
  EXPECT_EQ(gpu.gpu->stream(), nullptr) << "not CUDA's default stream";
  const Tensor a = torch::full({2048, 2048}, 1.0 / 2048, torch::kCUDA);
  Tensor x;
  std::thread([&] {
    Tensor b = a;
    for (int i = 0; i < 50; ++i) b = b.mm(a);  // keeps the stream at work
    x = torch::full({1 << 20}, 3.0, torch::kCUDA).mul_(b[0][0] * 2048);
  }).join();
  EXPECT_NEAR(x.add(1).min().item<double>(), 4, 0.01);
}

TEST_F(OnGpu, CopiesAreOrderedWithLibTorchsWork) {
  Tensor x = torch::zeros({1 << 20}, torch::kCUDA);
  const Tensor a = torch::full({2048, 2048}, 1.0 / 2048, torch::kCUDA);
  Tensor b = a;
  for (int i = 0; i < 50; ++i) b = b.mm(a);  // keeps the stream at work
  x.add_(b[0][0] * 2048);
  const Tensor host = torch::zeros({1 << 20});
  gpu.device
      ->begin_copy_out({static_cast<std::byte*>(host.data_ptr()), host.nbytes()}, device_span_of(x))
      .finish();
  EXPECT_NEAR(host.min().item<double>(), 1, 1e-3);
  EXPECT_NEAR(host.max().item<double>(), 1, 1e-3);
}

TEST_F(OnGpu, LossAndGradientsAreThoseOfTheCpu) {
  config::ModelConfig model = models::test::tiny_model();
  model.n_embd = 64;
  model.n_positions = 128;
  model.vocab_size = 100;
  BoundGpt2 here(model, torch::kFloat32);
  BoundGpt2 there(model, torch::kFloat32, 1, torch::kCUDA);
  const Tensor tokens = models::test::random_tokens(model, 3, 128);
  const Tensor targets = models::test::random_tokens(model, 3, 128, 6);
  here.bind_gradients();
  there.bind_gradients();
  const Tensor loss = here.loss(tokens, targets);
  const Tensor gpu_loss = there.loss(tokens.to(torch::kCUDA), targets.to(torch::kCUDA));
  EXPECT_NEAR(gpu_loss.item<double>(), loss.item<double>(), 1e-4);
  loss.backward();
  gpu_loss.backward();
  for (std::size_t u = 0; u < here.gradient.size(); ++u) {
    const Tensor difference = there.gradient[u].cpu() - here.gradient[u];
    // fp32 sums in another order, and TF32 is off: parts in 10 thousand of the largest.
    EXPECT_LT(difference.abs().max().item<double>(),
              1e-4 * (1 + here.gradient[u].abs().max().item<double>()))
        << here.units[u].name;
  }
}

TEST_F(OnGpu, DropoutMasksFollowFromTheirKey) {
  const Tensor x = torch::ones({100'000}, torch::kCUDA);
  const DropoutKey key{true, 17, 3, 2};
  const Tensor y = models::dropout(x, 0.25, key, 1, 1);
  EXPECT_TRUE(torch::equal(y, models::dropout(x, 0.25, key, 1, 1)));
  EXPECT_FALSE(torch::equal(y, models::dropout(x, 0.25, key, 1, 2)));
  EXPECT_NEAR(y.eq(0).to(torch::kFloat32).mean().item<double>(), 0.25, 0.01);
  EXPECT_NEAR(y.mean().item<double>(), 1, 0.01);
}

TEST_F(OnGpu, SquaredNormsAreThoseOfTheCpu) {
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kFloat16}) {
    const Tensor gradient = torch::randn({100'003}).to(dtype);
    const auto expected = gradient.to(torch::kFloat64).square().sum().item<double>();
    const Tensor there = gradient.to(torch::kCUDA);
    const Tensor result = torch::zeros({1}, there.options().dtype(torch::kFloat64));
    issue_squared_norm(nullptr, there, result);  // LibTorch's
    EXPECT_NEAR(result.item<double>() / expected, 1, 1e-5);
    issue_squared_norm(gpu.gpu.get(), there, result);  // the kernel, where it was built
    EXPECT_NEAR(result.item<double>() / expected, 1, 1e-5);
    const auto first = result.item<double>();
    issue_squared_norm(gpu.gpu.get(), there, result);
    EXPECT_EQ(result.item<double>(), first);
    there[17] = std::numeric_limits<double>::quiet_NaN();
    issue_squared_norm(gpu.gpu.get(), there, result);
    EXPECT_FALSE(std::isfinite(result.item<double>()));
  }
}

}  // namespace
}  // namespace sluice::train
