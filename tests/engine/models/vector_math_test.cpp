// oneMKL chooses its kernels at a process's first call, so each round is a process. The test reads
// the choice where oneMKL stores it: in the bits of an exp, it differs in about one of 2000 runs.

#include "sluice/models/vector_math.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

namespace sluice::models {
namespace {

using ChosenKernels = int (*)();

// Whether one of two simultaneous threads ever sees other kernels than the final ones.
bool choice_wavers(ChosenKernels chosen_kernels) {
  constexpr std::size_t kLooks = 2000;
  std::array<std::array<int, kLooks>, 2> seen{};
  std::atomic<int> ready{0};
  const auto look = [&](std::array<int, kLooks>& looks) {
    ++ready;
    while (ready < 2) {
    }
    for (int& kernels : looks) kernels = chosen_kernels();
  };
  std::thread other([&] { look(seen[0]); });
  look(seen[1]);
  other.join();
  const int final = chosen_kernels();
  for (const auto& looks : seen) {
    for (const int kernels : looks) {
      if (kernels != final) return true;
    }
  }
  return false;
}

TEST(VectorMath, TheChoiceOfKernelsStandsBeforeThreadsAsk) {
  const auto chosen_kernels =
      reinterpret_cast<ChosenKernels>(::dlsym(RTLD_DEFAULT, "mkl_vml_serv_cpu_detect"));
  if (chosen_kernels == nullptr) GTEST_SKIP() << "this LibTorch has no oneMKL, or another one";
  for (int round = 0; round < 300; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      settle_vector_math();
      ::_exit(choice_wavers(chosen_kernels) ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << "status " << status;
    ASSERT_EQ(WEXITSTATUS(status), 0) << "in process " << round;
  }
}

TEST(VectorMath, MayBeCalledAgain) {
  settle_vector_math();
  settle_vector_math();
  EXPECT_EQ(torch::zeros({1}).exp().item<float>(), 1.0F);
}

}  // namespace
}  // namespace sluice::models
