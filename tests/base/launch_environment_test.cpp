#include "sluice/base/launch_environment.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "sluice/base/error.hpp"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Variables = std::map<std::string, std::string>;

LaunchEnvironment read(const Variables& variables) {
  return launch_environment([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

// Launcher, rank of world size, local rank of local size, address:port, on one line.
std::string shown(const LaunchEnvironment& ranks) {
  return ranks.launcher + " " + std::to_string(ranks.rank) + "/" +
         std::to_string(ranks.world_size) + " " + std::to_string(ranks.local_rank) + "/" +
         std::to_string(ranks.local_size) + " " + ranks.master_address + ":" +
         std::to_string(ranks.master_port);
}

std::string refusal(const Variables& variables) {
  try {
    return "accepted: " + shown(read(variables));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

Variables with(Variables variables, const Variables& others) {
  for (const auto& [name, text] : others) variables[name] = text;
  return variables;
}

// Rank 3 of 4 on the second of two hosts.
const Variables kTorchrun = {{"RANK", "3"},          {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},    {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "one"}, {"MASTER_PORT", "1234"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Variables kMpich = {
    {"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Variables kSlurm = {{"SLURM_PROCID", "3"},
                          {"SLURM_NTASKS", "4"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                          {"SLURM_STEP_NODELIST", "node[07-08]"}};
// A job of two tasks around the process, as its batch script and all it starts see it.
const Variables kSlurmJob = {{"SLURM_PROCID", "0"},
                             {"SLURM_NTASKS", "2"},
                             {"SLURM_LOCALID", "0"},
                             {"SLURM_TASKS_PER_NODE", "1(x2)"}};

struct Case {
  const char* name;
  Variables variables;
  const char* expected;
};
void PrintTo(const Case& given, std::ostream* out) {
  *out << given.name;
}

class Launchers : public ::testing::TestWithParam<Case> {};
TEST_P(Launchers, AreReadFromTheirVariables) {
  EXPECT_EQ(refusal(GetParam().variables), std::string("accepted: ") + GetParam().expected);
}
INSTANTIATE_TEST_SUITE_P(
    Each, Launchers,
    ::testing::Values(
        Case{"Nothing", {}, " 0/1 0/1 127.0.0.1:29500"},
        Case{"Torchrun", kTorchrun, "torchrun 3/4 1/2 one:1234"},
        Case{"TorchrunOfOneRankByHand",
             {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}},
             "torchrun 0/1 0/1 127.0.0.1:29500"},
        Case{"DeepSpeed",
             {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"LOCAL_SIZE", "2"}},
             "torchrun 1/2 1/2 127.0.0.1:29500"},
        Case{"OpenMpi", kOpenMpi, "Open MPI 3/4 1/2 :29500"},
        Case{"OpenMpiWithAnAddress", with(kOpenMpi, {{"MASTER_ADDR", "one"}}),
             "Open MPI 3/4 1/2 one:29500"},
        Case{"Mpich", kMpich, "MPICH 3/4 1/2 :29500"},
        Case{"SlurmWithPmi", with({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}}, kSlurm),
             "MPICH 3/4 1/2 node07:29500"},
        Case{"SlurmWithPmiAndAnAddress",
             with({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MASTER_ADDR", "one"}}, kSlurm),
             "MPICH 3/4 1/2 one:29500"},
        Case{"MpichInASlurmJob", with(with(kSlurm, kMpich), {{"SLURM_PROCID", "1"}}),
             "MPICH 3/4 1/2 :29500"},
        // mpiexec hands the variables of the batch script, or of the proxy on a host, to all ranks.
        Case{"MpichInASlurmBatchScript",
             with(with(kSlurmJob, {{"SLURM_JOB_NODELIST", "node[07-08]"}}),
                  with(kMpich, {{"PMI_RANK", "0"},
                                {"PMI_SIZE", "2"},
                                {"MPI_LOCALRANKID", "0"},
                                {"MPI_LOCALNRANKS", "1"}})),
             "MPICH 0/2 0/1 :29500"},
        Case{"MpichThatStartedItsProxiesBySrun",
             with(with(kSlurm, {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}),
                  with(kMpich, {{"PMI_RANK", "0"}, {"MPI_LOCALRANKID", "0"}})),
             "MPICH 0/4 0/2 :29500"},
        Case{"Slurm", kSlurm, "Slurm 3/4 1/2 node07:29500"},
        Case{"SlurmWithUnevenHosts",
             with(kSlurm, {{"SLURM_NTASKS", "8"},
                           {"SLURM_PROCID", "7"},
                           {"SLURM_LOCALID", "0"},
                           {"SLURM_NODEID", "3"},
                           {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1,1"}}),
             "Slurm 7/8 0/1 node07:29500"},
        Case{"SlurmWithHostsWithoutNumbers",
             with(kSlurm, {{"SLURM_STEP_NODELIST", "login,node[1-2]"}}),
             "Slurm 3/4 1/2 login:29500"},
        Case{"SlurmShellWithoutStep", {{"SLURM_NTASKS", "2"}}, " 0/1 0/1 127.0.0.1:29500"},
        Case{"MpirunInASlurmJob", with(kSlurmJob, kOpenMpi), "Open MPI 3/4 1/2 :29500"},
        Case{"TorchrunInASlurmJob", with(kSlurmJob, kTorchrun), "torchrun 3/4 1/2 one:1234"},
        Case{"TorchrunAgentsThatMpirunStarted",
             with(with(kOpenMpi, kTorchrun),
                  {{"OMPI_COMM_WORLD_RANK", "1"}, {"TORCHELASTIC_RUN_ID", "none"}}),
             "torchrun 3/4 1/2 one:1234"},
        Case{"MpirunAndTorchrunThatAgree", with(kOpenMpi, kTorchrun), "torchrun 3/4 1/2 one:1234"}),
    [](const auto& tested) { return tested.param.name; });

class HostileLaunchers : public ::testing::TestWithParam<Case> {};
TEST_P(HostileLaunchers, AreRefusedWithOneLineThatNamesTheVariables) {
  const std::string said = refusal(GetParam().variables);
  EXPECT_THAT(said, AllOf(HasSubstr(GetParam().expected), Not(HasSubstr("accepted")),
                          Not(HasSubstr("\n"))));
}
INSTANTIATE_TEST_SUITE_P(
    Each, HostileLaunchers,
    ::testing::Values(
        Case{"RankIsWorldSize", with(kTorchrun, {{"RANK", "4"}}),
             "RANK=4 with WORLD_SIZE=4: ranks are numbered from 0 to 3"},
        Case{"LocalRankIsLocalSize", with(kTorchrun, {{"LOCAL_RANK", "2"}}),
             "LOCAL_RANK=2 with LOCAL_WORLD_SIZE=2: ranks are numbered from 0 to 1"},
        Case{"MoreRanksOnThisHostThanInAll", with(kTorchrun, {{"LOCAL_WORLD_SIZE", "5"}}),
             "LOCAL_WORLD_SIZE=5 with WORLD_SIZE=4"},
        Case{"RankIsNoNumber", with(kTorchrun, {{"RANK", "three"}}),
             "RANK=\"three\": expected a whole number from 0"},
        Case{"RankHasTextBehind", with(kTorchrun, {{"RANK", "3x"}}), "RANK=\"3x\""},
        Case{"RankIsNegative", with(kTorchrun, {{"RANK", "-1"}}), "RANK=\"-1\""},
        Case{"WorldSizeIsZero", with(kTorchrun, {{"WORLD_SIZE", "0"}}),
             "WORLD_SIZE=\"0\": expected a whole number from 1"},
        Case{"WorldSizeIsTooLarge", with(kTorchrun, {{"WORLD_SIZE", "99999999999"}}),
             "WORLD_SIZE=\"99999999999\": expected a whole number from 1"},
        Case{"NoWorldSize", {{"RANK", "1"}}, "WORLD_SIZE is not set beside RANK=1"},
        Case{"NoRank", {{"WORLD_SIZE", "2"}}, "RANK is not set beside WORLD_SIZE=2"},
        Case{"EmptyRank", with(kTorchrun, {{"RANK", ""}}), "RANK is not set beside WORLD_SIZE=4"},
        Case{"NoLocalRank",
             {{"RANK", "1"}, {"WORLD_SIZE", "2"}},
             "LOCAL_RANK is not set beside RANK=1 and WORLD_SIZE=2"},
        Case{"NoAddressAcrossHosts", with(kTorchrun, {{"MASTER_ADDR", ""}}),
             "MASTER_ADDR is not set"},
        Case{"PortZero", with(kTorchrun, {{"MASTER_PORT", "0"}}),
             "MASTER_PORT=\"0\": expected a whole number from 1 to 65535"},
        Case{"PortTooLarge", with(kTorchrun, {{"MASTER_PORT", "70000"}}), "MASTER_PORT=\"70000\""},
        Case{"OpenMpiWithoutSize",
             {{"OMPI_COMM_WORLD_RANK", "0"}},
             "OMPI_COMM_WORLD_SIZE is not set beside OMPI_COMM_WORLD_RANK=0"},
        Case{"MpichRankIsSize", with(kMpich, {{"PMI_RANK", "4"}}), "PMI_RANK=4 with PMI_SIZE=4"},
        Case{"SlurmRankIsSize", with(kSlurm, {{"SLURM_PROCID", "4"}}),
             "SLURM_PROCID=4 with SLURM_NTASKS=4"},
        Case{"SlurmListTooShort", with(kSlurm, {{"SLURM_NODEID", "2"}}),
             "SLURM_STEP_TASKS_PER_NODE=2(x2) has no host number 2"},
        Case{"SlurmListIsNoList",
             with(kSlurm, {{"SLURM_NODEID", "0"}, {"SLURM_STEP_TASKS_PER_NODE", "many"}}),
             "SLURM_STEP_TASKS_PER_NODE=\"many\""},
        Case{"SlurmBatchScript", kSlurmJob, "the batch script itself is no rank"},
        Case{"LaunchersDisagreeInRank",
             with(kTorchrun, with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "2"}})),
             "torchrun says rank 3 of 4, Open MPI says rank 2 of 4"},
        Case{"LaunchersDisagreeInSize", with(kOpenMpi, with(kMpich, {{"PMI_SIZE", "8"}})),
             "Open MPI says rank 3 of 4, MPICH says rank 3 of 8"}),
    [](const auto& tested) { return tested.param.name; });

TEST(LaunchEnvironment, IsThatOfThisProcess) {
  for (const auto& [name, text] : kTorchrun) ::setenv(name.c_str(), text.c_str(), 1);
  const LaunchEnvironment ranks = launch_environment();
  for (const auto& [name, text] : kTorchrun) ::unsetenv(name.c_str());
  EXPECT_EQ(shown(ranks), "torchrun 3/4 1/2 one:1234");
}

}  // namespace
}  // namespace sluice
