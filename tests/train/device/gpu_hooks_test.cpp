// Hooks on a model that a GPU computes, in a program that has used the GPU through LibTorch before.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <dlfcn.h>

#include <string>

#include "hooked_course.hpp"
#include "sluice/base/error.hpp"
#include "sluice/offload/cuda_device.hpp"

namespace sluice::train {
namespace {

using sluice::test::Course;
using sluice::test::LoopSetup;
using sluice::test::Model;
using torch::Tensor;

constexpr int kSteps = 4;

class GpuHooks : public testing::Test {
 protected:
  void SetUp() override {
    const offload::CudaDevices found = offload::find_cuda_devices();
    if (found.devices.empty()) GTEST_SKIP() << "needs an NVIDIA GPU: " << found.why_none;
    // A program on GPUs links it; this one runs without GPUs too.
    ASSERT_NE(::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL), nullptr) << ::dlerror();
    before_ = torch::ones({1 << 20}, torch::kCUDA);
  }
  // LibTorch's own tensors go on to be made, and to compute.
  void TearDown() override {
    if (!before_.defined()) return;
    EXPECT_EQ((before_ + 1).sum().item<double>(), 2 << 20);
  }

 private:
  Tensor before_;
};

LoopSetup in(const std::string& states, const std::string& weights, const std::string& device) {
  LoopSetup setup;
  setup.optimizer_device = states;
  setup.param_device = weights;
  setup.bf16 = false;
  setup.device_bytes = "auto";
  setup.sluice_keys = "\"device\": \"" + device + "\", \"deterministic\": true, ";
  return setup;
}

Course run_on(const LoopSetup& setup, torch::Device from = torch::kCPU) {
  const sluice::test::TempDir swap;
  HookedLoop loop(sluice::test::config_of(setup, swap.path()));
  Model model;
  model.embed->to(from);
  for (auto& block : model.blocks) block->to(from);
  model.head->to(from);
  test::HookedModel hooked(loop, std::move(model), setup.accumulation);
  Course course = hooked.take_steps(0, kSteps, loop.device());
  loop.finish();
  return course;
}

TEST_F(GpuHooks, HaveEqualBitsOnEveryTier) {
  const Course expected = run_on(in("cpu", "none", "cuda"));
  sluice::test::expect_same(run_on(in("cpu", "cpu", "cuda")), expected);
  sluice::test::expect_same(run_on(in("nvme", "nvme", "cuda")), expected);
}

TEST_F(GpuHooks, HaveTheLossesOfTheCpu) {
  const Course there = run_on(in("cpu", "cpu", "cuda"));
  const Course here = run_on(in("cpu", "cpu", "host"));
  ASSERT_EQ(there.losses.size(), here.losses.size());
  for (std::size_t i = 0; i < here.losses.size(); ++i)
    EXPECT_NEAR(there.losses[i], here.losses[i], 1e-5 * here.losses[i]);
}

TEST_F(GpuHooks, TakeAModelThatIsOnTheGpu) {
  sluice::test::expect_same(run_on(in("cpu", "cpu", "cuda"), torch::kCUDA),
                            run_on(in("cpu", "cpu", "cuda")));
}

}  // namespace
}  // namespace sluice::train
