#pragma once
// A test of one kernel, named by the parameter; it is skipped where the processor cannot run it.

#include <gtest/gtest.h>

#include <string>

#include "kernels.hpp"

namespace sluice::cpu_adam::test {

class KernelTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    for (const Kernel& kernel : kernels()) {
      if (kernel.name == GetParam()) kernel_ = &kernel;
    }
    ASSERT_NE(kernel_, nullptr);
    if (!runs_here(*kernel_)) GTEST_SKIP() << "this CPU has no " << GetParam();
  }

  const Kernel* kernel_ = nullptr;
};

}  // namespace sluice::cpu_adam::test
