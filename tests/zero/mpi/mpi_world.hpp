#pragma once
// The ranks of a program of tests that mpirun started: each process is one, and all run the same
// tests in the same order.

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "sluice/zero/ranks.hpp"

namespace sluice::zero::test {

class MpiWorld final : public testing::Environment {
 public:
  void SetUp() override {
    joined() = join_mpi({.silence_limit = silence_limit_from_environment()});
  }
  void TearDown() override { joined().reset(); }

  static Ranks& ranks() { return *joined(); }
  // Known before MPI is started, for the names of the tests.
  static int world_size() {
    const char* text = std::getenv("OMPI_COMM_WORLD_SIZE");
    return text == nullptr ? 1 : std::atoi(text);
  }

 private:
  static std::optional<Ranks>& joined() {
    static std::optional<Ranks> ranks;
    return ranks;
  }
};

inline const testing::Environment* const kWorld = testing::AddGlobalTestEnvironment(new MpiWorld);

}  // namespace sluice::zero::test
