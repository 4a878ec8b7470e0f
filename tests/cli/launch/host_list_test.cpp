// Hostfiles, DeepSpeed's filters, and the shares of a host's cores and GPUs.

#include "launch/host_list.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "file_text.hpp"
#include "launch/local_launch.hpp"
#include "launch/rank_cores.hpp"
#include "message_of.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"
#include "sluice/base/threads.hpp"
#include "temp_dir.hpp"

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;

// "one:0,1 two:0": hosts with the slots of each.
std::string shown(const std::vector<Host>& hosts) {
  std::string text;
  for (const Host& host : hosts)
    text += (text.empty() ? "" : " ") + host.name + ":" + join(host.slots, ",");
  return text;
}

std::string parsed(const std::string& text) {
  try {
    return shown(parse_hostfile(text, "hosts"));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

std::string filtered(const std::string& include, const std::string& exclude) {
  try {
    return shown(
        filter_hosts(parse_hostfile("one slots=4\ntwo slots=2\n", "hosts"), include, exclude));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

TEST(Hostfile, HasAHostWithItsSlotsOnEachLine) {
  EXPECT_EQ(parsed("# ours\none slots=2\n\n  two\tslots=1  # the old one\r\n"), "one:0,1 two:0");
}

TEST(Hostfile, MayNameAUserWhichAFilterLeavesOut) {
  const std::vector<Host> hosts = parse_hostfile("me@one slots=2\ntwo slots=1\n", "hosts");
  EXPECT_EQ(shown(filter_hosts(hosts, "one:1@two", "")), "me@one:1 two:0");
  EXPECT_EQ(shown(filter_hosts(hosts, "", "one")), "two:0");
  EXPECT_THROW(filter_hosts(hosts, "one@one:0", ""), InvalidArgument);
  EXPECT_EQ(parsed("me@one slots=2\none slots=2\n"), "hosts:2: one is there twice");
}

TEST(Hostfile, NamesHostsWithoutCase) {
  EXPECT_EQ(parsed("Node1 slots=1\nnode1 slots=1\n"), "hosts:2: node1 is there twice");
  EXPECT_EQ(shown(filter_hosts(parse_hostfile("me@Node1 slots=2\n", "hosts"), "node1:1", "")),
            "me@Node1:1");
}

TEST(VisibleGpus, EndAtTheFirstNameThatCudaDoesNotKnow) {
  using ::testing::ElementsAre;
  EXPECT_THAT(visible_gpus("0, 2,GPU-8932f937"), ElementsAre("0", "2", "GPU-8932f937"));
  EXPECT_THAT(visible_gpus("0,-1,1"), ElementsAre("0"));
  EXPECT_THAT(visible_gpus("0,1,"), ElementsAre("0", "1"));
  for (const char* none : {"", "-1", "-1,0", "NoDevFiles"})
    EXPECT_TRUE(visible_gpus(none).empty()) << none;
}

// As in a container with two GPUs of a host that has more.
TEST(GpuFiles, AreThoseWithANumberWhateverTheFirstIs) {
  const test::TempDir folder;
  EXPECT_EQ(count_gpu_files(folder.path()), 0U);
  for (const char* name : {"nvidia2", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-caps", "null"})
    test::write_file(folder.file(name), "");
  EXPECT_EQ(count_gpu_files(folder.path()), 2U);
  EXPECT_EQ(count_gpu_files(folder.file("absent")), 0U);
}

TEST(Hostfile, MayBeginWithAByteOrderMark) {
  EXPECT_EQ(parsed("\xEF\xBB\xBFone slots=1\n"), "one:0");
}

TEST(Hostfile, IsRefusedWithTheLineOfItsMistake) {
  EXPECT_EQ(parsed("one slots=2\ntwo\n"), "hosts:2: expected \"NAME slots=N\", found \"two\"");
  EXPECT_THAT(parsed("one slots=0\n"), HasSubstr("hosts:1: expected"));
  EXPECT_THAT(parsed("one slots=two\n"), HasSubstr("hosts:1: expected"));
  EXPECT_THAT(parsed("one slots=1 max_slots=3\n"), HasSubstr("hosts:1: expected"));
  EXPECT_EQ(parsed("one slots=2\none slots=2\n"), "hosts:2: one is there twice");
  EXPECT_EQ(parsed("-oProxyCommand=x slots=1\n"),
            "hosts:1: a host's name does not begin with -: -oProxyCommand=x");
  EXPECT_THAT(parsed("# nothing\n"), HasSubstr("has no hosts"));
}

TEST(HostFilter, LeavesTheNamedHostsAndSlots) {
  EXPECT_EQ(filtered("", ""), "one:0,1,2,3 two:0,1");
  EXPECT_EQ(filtered("two", ""), "two:0,1");
  EXPECT_EQ(filtered("two@one:3,1", ""), "one:1,3 two:0,1");
  EXPECT_EQ(filtered("", "one"), "two:0,1");
  EXPECT_EQ(filtered("", "one:0,2@two:1"), "one:1,3 two:0");
  EXPECT_EQ(filtered("", "two:0,1"), "one:0,1,2,3");
}

TEST(HostFilter, NamesIpv6AddressesAsTheHostfileDoes) {
  const std::vector<Host> hosts =
      parse_hostfile("me@fd77::2 slots=4\nfd77::2:1 slots=2\n", "hosts");
  EXPECT_EQ(shown(filter_hosts(hosts, "fd77::2", "")), "me@fd77::2:0,1,2,3");
  EXPECT_EQ(shown(filter_hosts(hosts, "FD77::2:0,2@fd77::2:1:1", "")),
            "me@fd77::2:0,2 fd77::2:1:1");
  EXPECT_EQ(shown(filter_hosts(hosts, "", "fd77::2:1")), "me@fd77::2:0,1,2,3");
}

TEST(HostFilter, RefusesHostsAndSlotsThatAreNotThere) {
  EXPECT_EQ(filtered("three", ""), "--include: \"three\" is none of the hosts");
  EXPECT_EQ(filtered("", "two:2"), "--exclude: two has no slot 2; its slots are 0,1");
  EXPECT_THAT(filtered("two:x", ""), HasSubstr("\"x\" is no number of a slot"));
  EXPECT_THAT(filtered("two:", ""), HasSubstr("is no number of a slot"));
  EXPECT_EQ(filtered("two:0,0", ""), "--include: slot 0 of two is there twice");
  EXPECT_EQ(filtered("two@two", ""), "--include: two is there twice");
  EXPECT_EQ(filtered("", "one@two"), "--exclude: no host is left");
}

TEST(FirstHosts, AreTheFirstOfTheFileWithTheirFirstSlots) {
  const std::vector<Host> hosts = parse_hostfile("one slots=4\ntwo slots=2\n", "hosts");
  EXPECT_EQ(shown(first_of(hosts, 0, 2)), "one:0,1 two:0,1");
  EXPECT_EQ(shown(first_of(hosts, 1, 0)), "one:0,1,2,3");
  EXPECT_EQ(count_ranks(hosts), 6);
  EXPECT_THROW(first_of(hosts, 3, 0), InvalidArgument);
  EXPECT_THROW(first_of(hosts, 0, 3), InvalidArgument);
}

TEST(FirstHosts, NameTheHostWithFewerSlots) {
  EXPECT_EQ(test::message_of<InvalidArgument>(
                [] { first_of(parse_hostfile("one slots=1\n", "hosts"), 0, 2); }),
            "--num-gpus: 2 ranks are wanted on one, which has 1 slot");
}

TEST(CoreList, IsRangesAndNumbers) {
  EXPECT_EQ(parse_core_list("4,0-2,1"), (std::vector<int>{0, 1, 2, 4}));
  for (const char* wrong : {"x", "1-", "-1", "3-1", "1,,2", "99999"})
    EXPECT_THROW(parse_core_list(wrong), InvalidArgument) << wrong;
}

TEST(CoreShares, AreDisjointAndOfOneSize) {
  const int cores = allowed_cores().value_or(1);
  const std::vector<RankCores> shares = share_cores("", cores);
  std::vector<int> all;
  for (const RankCores& share : shares) {
    EXPECT_EQ(share.cpus.size(), 1U);
    EXPECT_EQ(share.cores, 1);
    all.insert(all.end(), share.cpus.begin(), share.cpus.end());
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::unique(all.begin(), all.end()), all.end());
  EXPECT_EQ(share_cores("", 1).front().cpus.size(), static_cast<std::size_t>(cores));
  EXPECT_THROW(share_cores("", cores + 1), InvalidArgument);
}

TEST(CoreShares, RefuseACoreThatThisProcessMayNotUse) {
  EXPECT_THAT(test::message_of<InvalidArgument>([] { share_cores("1000", 1); }),
              HasSubstr("this process may not use core 1000"));
}

}  // namespace
}  // namespace sluice::cli
