#include "sluice/base/host_name.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

namespace sluice {
namespace {

TEST(HostName, IsThatOfTheSystem) {
  std::string expected(256, '\0');
  ASSERT_EQ(::gethostname(expected.data(), expected.size()), 0);
  EXPECT_EQ(host_name(), expected.c_str());
  EXPECT_NE(host_name(), "");
}

}  // namespace
}  // namespace sluice
