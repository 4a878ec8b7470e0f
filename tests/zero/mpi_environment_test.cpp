#include "mpi/mpi_environment.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "message_of.hpp"
#include "sluice/base/error.hpp"
#include "sluice/zero/ranks.hpp"

namespace sluice::zero {
namespace {

// The variables of one rank of mpirun, and none of another launcher.
void set_ranks(const char* world_size, const char* local_size) {
  for (const char* name : {"RANK", "WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID"})
    ::unsetenv(name);
  ::setenv("OMPI_COMM_WORLD_RANK", "0", 1);
  ::setenv("OMPI_COMM_WORLD_LOCAL_RANK", "0", 1);
  ::setenv("OMPI_COMM_WORLD_SIZE", world_size, 1);
  ::setenv("OMPI_COMM_WORLD_LOCAL_SIZE", local_size, 1);
}

std::string variable(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? "" : text;
}

TEST(RanksOnSeveralHosts, AreMoreThanThoseOfThisHost) {
  set_ranks("4", "4");
  EXPECT_FALSE(ranks_on_several_hosts());
  set_ranks("4", "2");
  EXPECT_TRUE(ranks_on_several_hosts());
  set_ranks("2", "4");
  EXPECT_THROW(ranks_on_several_hosts(), InvalidArgument);
}

TEST(KeepDirectionsApart, LeavesTheSettingsOfTheUser) {
  ::setenv("OMPI_MCA_btl_tcp_eager_limit", "4096", 1);
  ::unsetenv("OMPI_MCA_btl_tcp_rndv_eager_limit");
  ::unsetenv("OMPI_MCA_btl_tcp_max_send_size");
  keep_directions_apart();
  EXPECT_EQ(variable("OMPI_MCA_btl_tcp_eager_limit"), "4096");
  for (const char* name : {"OMPI_MCA_btl_tcp_rndv_eager_limit", "OMPI_MCA_btl_tcp_max_send_size"})
    EXPECT_GT(std::stoul(variable(name)), kMessageBytesBetweenHosts) << "a header comes on top";
}

// This program has no path to the folder of the libraries.
TEST(JoinMpi, SaysWhatToBuildWhereTheLibraryIsNotInTheFolder) {
  set_ranks("1", "1");
  const std::string text = sluice::test::message_of<Error>([] { join_mpi(MpiOptions{}); });
  if (text.starts_with("this build has no MPI")) return;
  EXPECT_NE(text.find("; there is no "), text.npos) << text;
  EXPECT_NE(text.find("/bin/libsluice_mpi.so. Build the target sluice_mpi"), text.npos) << text;
}

}  // namespace
}  // namespace sluice::zero
