#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "kernels.hpp"
#include "message_of.hpp"
#include "sluice/base/error.hpp"
#include "sluice/cpu_adam/optimizer.hpp"

namespace sluice::cpu_adam {
namespace {

using ::testing::HasSubstr;

// In a new process: sets SLUICE_SIMD, prints the kernel in use or the error, and exits with 0 or 3.
[[noreturn]] void report_choice(const char* forced) {
  ::setenv("SLUICE_SIMD", forced, 1);
  try {
    std::fprintf(stderr, "uses %s", std::string(kernel_in_use()).c_str());
  } catch (const InvalidArgument& error) {
    std::fprintf(stderr, "%s", error.what());
    std::exit(3);
  }
  std::exit(0);
}

class KernelChoiceDeathTest : public ::testing::Test {
 protected:
  // The child starts from main(), so that no earlier test has chosen a kernel there.
  void SetUp() override { ::testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
};

TEST(KernelNames, EndWithScalar) {
  const std::vector<std::string> names = kernel_names();
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names.back(), "scalar");
}

#if defined(__x86_64__)
TEST(KernelNames, ListAvx512BeforeAvx2OnX86) {
  EXPECT_THAT(kernel_names(), ::testing::ElementsAre("avx512", "avx2", "scalar"));
}
#endif

TEST(KernelInUse, IsOneOfTheList) {
  EXPECT_THAT(kernel_names(), ::testing::Contains(std::string(kernel_in_use())));
}

TEST(FindKernel, FindsEveryKernelThatRunsHere) {
  for (const Kernel& kernel : kernels()) {
    if (!runs_here(kernel)) continue;
    EXPECT_EQ(find_kernel(kernel.name).name, kernel.name);
  }
}

TEST(FindKernel, RefusesAnUnknownNameWithTheList) {
  for (const char* name : {"", "AVX2", "sse4", "avx2 "}) {
    const std::string said = sluice::test::message_of<InvalidArgument>([&] { find_kernel(name); });
    EXPECT_THAT(said, HasSubstr("SLUICE_SIMD=" + std::string(name)));
    for (const std::string& known : kernel_names()) EXPECT_THAT(said, HasSubstr(known));
  }
}

TEST_F(KernelChoiceDeathTest, EveryKernelCanBeForcedByTheEnvironment) {
  for (const Kernel& kernel : kernels()) {
    const std::string name(kernel.name);
    if (runs_here(kernel)) {
      EXPECT_EXIT(report_choice(name.c_str()), ::testing::ExitedWithCode(0), "uses " + name);
    } else {
      EXPECT_EXIT(report_choice(name.c_str()), ::testing::ExitedWithCode(3), "cannot run");
    }
  }
}

TEST_F(KernelChoiceDeathTest, AnEmptyNameIsNone) {
  EXPECT_EXIT(report_choice(""), ::testing::ExitedWithCode(0), "uses ");
}

TEST_F(KernelChoiceDeathTest, AnUnknownNameInTheEnvironmentIsRefused) {
  EXPECT_EXIT(report_choice("mmx"), ::testing::ExitedWithCode(3),
              "SLUICE_SIMD=mmx names no kernel of this build.*scalar");
}

}  // namespace
}  // namespace sluice::cpu_adam
