// `sluice nvme verify` and `sluice nvme clean` as their users run them.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "cli/json_text.hpp"
#include "cli/run_program.hpp"
#include "in_child.hpp"
#include "offload/swap/swap_test_support.hpp"
#include "sluice/base/fd.hpp"
#include "sluice/nvme/bench_file.hpp"
#include "sluice/offload/checkpoint_folder.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "sluice/offload/swap_store.hpp"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;

using offload::kChecksumChunkBytes;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kExitStorage = 4;
constexpr std::uint64_t kSomeBytes = 4 * kChecksumChunkBytes + 123 + 100 + 1;  // of some_shards()

// A directory with a store of four shards, all in slot 0.
class NvmeDirectory : public offload::test::SwapStoreTest {
 protected:
  ProgramResult run(const std::string& command, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"nvme", command, dir_.path()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_sluice(arguments);
  }
  Json::Value run_json(const std::string& command, int exit_code,
                       std::vector<std::string> more = {}) {
    more.emplace_back("--json");
    const ProgramResult result = run(command, std::move(more));
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1) << result.out;
    return parse_json(result.out);
  }
  void leave_leftovers() {
    write_file(dir_.file("scratch.spill.swap"), std::string(10'000, 'x'));
    write_file(dir_.file("manifest.json.tmp"), "{\"form");
    write_file(dir_.file(std::string(nvme::kBenchFileName)), std::string(5'000, 'x'));
    write_file(dir_.file("notes.txt"), "of nobody's");
  }
  // Checkpoints of steps 3 and 12, and an unfinished one.
  void leave_checkpoints() {
    for (const int step : {3, 12}) {
      const std::string checkpoint = offload::checkpoint_path(dir_.path(), step);
      fs::create_directory(checkpoint);
      const auto store = offload::SwapStore::create(checkpoint, *engine_, {{"w", 100}},
                                                    Durability::none, nvme::DirectIo::automatic);
      offload::test::update_all(*store, step);
      store->commit(step, "{}");
      store->close_cleanly();
    }
    fs::create_directory(offload::checkpoint_draft_path(dir_.path(), 15));
    write_file(dir_.file("step-00000015.tmp/states.0.swap"), std::string(10'000, 'x'));
  }
  const std::string slot_ = dir_.file("states.0.swap");
};

std::string in_use_by_this_process() {
  return "in use by another run (process " + std::to_string(::getpid()) + ")";
}

TEST_F(NvmeDirectory, IsVerifiedInOneLine) {
  commit_first(8);
  const ProgramResult result = run("verify");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out.rfind(dir_.path() + ": whole: step 8, 4 shards, 4.00 MiB checked in ", 0),
            0U)
      << result.out;
  EXPECT_THAT(result.out, ContainsRegex("in [0-9.]+ s, [0-9.]+ GB/s\n$"));
}

TEST_F(NvmeDirectory, IsVerifiedAsJson) {
  commit_first(8);
  const Json::Value object = run_json("verify", 0);
  EXPECT_EQ(object["directory"].asString(), dir_.path());
  EXPECT_EQ(object["step"].asInt64(), 8);
  EXPECT_EQ(object["shards"].asUInt64(), 4U);
  EXPECT_EQ(object["bytes"].asUInt64(), kSomeBytes);
  EXPECT_GT(object["seconds"].asDouble(), 0);
  EXPECT_TRUE(object["damaged"].isArray());
  EXPECT_TRUE(object["damaged"].empty());
  EXPECT_TRUE(object["ok"].asBool());
}

TEST_F(NvmeDirectory, NamesFileShardAndOffsetOfAFlippedBit) {
  commit_first(8);
  offload::test::flip_bit(slot_, kChecksumChunkBytes + 7, 2);
  const ProgramResult result = run("verify");
  EXPECT_EQ(result.exit_code, kExitStorage);
  EXPECT_THAT(result.out,
              HasSubstr(slot_ + ": shard \"blocks.0.attention\", 1048576 bytes at its offset "
                                "1048576 (file offset 1048576): differs from its checksum\n"));
  EXPECT_THAT(last_line(result.out), AllOf(HasSubstr(": DAMAGED: step 8, 4 shards, 4.00 MiB"),
                                           HasSubstr("1.00 MiB of 1 shard cannot be used")));
  EXPECT_THAT(result.err, HasSubstr(dir_.path() + " is damaged: restore it"));

  const Json::Value object = run_json("verify", kExitStorage);
  EXPECT_FALSE(object["ok"].asBool());
  ASSERT_EQ(object["damaged"].size(), 1U);
  const Json::Value& damaged = object["damaged"][0];
  EXPECT_EQ(damaged["file"].asString(), slot_);
  EXPECT_EQ(damaged["shard"].asString(), "blocks.0.attention");
  EXPECT_EQ(damaged["offset_bytes"].asUInt64(), kChecksumChunkBytes);
  EXPECT_EQ(damaged["size_bytes"].asUInt64(), kChecksumChunkBytes);
}

TEST_F(NvmeDirectory, NamesWhatAFileThatWasCutOffLacks) {
  commit_first(8);
  fs::resize_file(slot_, 3 * kChecksumChunkBytes + 4096 + 50);  // in the second shard
  const Json::Value object = run_json("verify", kExitStorage);
  ASSERT_EQ(object["damaged"].size(), 3U);
  EXPECT_EQ(object["damaged"][0]["shard"].asString(), "blocks.0.norm");
  EXPECT_EQ(object["damaged"][0]["offset_bytes"].asUInt64(), 0U);
  EXPECT_EQ(object["damaged"][0]["size_bytes"].asUInt64(), 100U);
  EXPECT_THAT(run("verify").out, HasSubstr("the file ends at byte "));
}

TEST_F(NvmeDirectory, NamesAFileThatIsAbsent) {
  commit_first(8);
  fs::remove(slot_);
  const ProgramResult result = run("verify");
  EXPECT_EQ(result.exit_code, kExitStorage);
  EXPECT_THAT(result.out, HasSubstr(slot_ + ": shard \"scale\", 1 bytes at its offset 0"));
  EXPECT_THAT(result.out, HasSubstr("the file is absent"));
  EXPECT_THAT(names_there(), ElementsAre("lock", "manifest.json", "states.1.swap"));
}

TEST_F(NvmeDirectory, ListsTheDamageFoundBeforeTheErrorThatEndsACheck) {
  commit_first(8);
  offload::test::flip_bit(slot_, 7, 2);
  const auto no_memory_for_third_chunk = [] {
    deny(__NR_io_uring_setup, EPERM);  // so that threads read, by a call with an offset
    deny(__NR_io_setup, EPERM);
    const unsigned offset_bytes = 2 * kChecksumChunkBytes;
    deny(__NR_pread64, ENOMEM, offset_bytes, offset_bytes, 3);
  };
  const ProgramResult result =
      run_sluice({"nvme", "verify", dir_.path()}, {}, no_memory_for_third_chunk);
  SLUICE_SKIP_IF_NOT_PERMITTED(result, "a seccomp filter");
  EXPECT_EQ(result.exit_code, kExitStorage);
  EXPECT_THAT(result.out, HasSubstr(slot_ + ": shard \"blocks.0.attention\", 1048576 bytes at its "
                                            "offset 0 (file offset 0): differs from its checksum"));
  EXPECT_THAT(result.err, HasSubstr(dir_.path() + " is damaged: restore it"));
  EXPECT_THAT(last_line(result.err), AllOf(HasSubstr(slot_), HasSubstr("Cannot allocate memory")));

  const ProgramResult as_json =
      run_sluice({"nvme", "verify", dir_.path(), "--json"}, {}, no_memory_for_third_chunk);
  EXPECT_EQ(as_json.exit_code, kExitStorage);
  EXPECT_EQ(std::count(as_json.out.begin(), as_json.out.end(), '\n'), 1) << as_json.out;
  const Json::Value object = parse_json(as_json.out);
  EXPECT_EQ(object["directory"].asString(), dir_.path());
  ASSERT_EQ(object["damaged"].size(), 1U);
  EXPECT_EQ(object["damaged"][0]["shard"].asString(), "blocks.0.attention");
  EXPECT_THAT(object["error"].asString(), HasSubstr("Cannot allocate memory"));
  EXPECT_EQ(object["exit_code"].asInt(), kExitStorage);
}

TEST_F(NvmeDirectory, EndsWithFourWhereThereIsNothingToVerify) {
  ProgramResult result = run("verify");
  EXPECT_EQ(result.exit_code, kExitStorage);
  EXPECT_THAT(result.err, HasSubstr(dir_.path() + ": holds no committed state"));
  EXPECT_TRUE(names_there().empty());
  create();
  EXPECT_EQ(run("verify").exit_code, kExitStorage);
  result = run_sluice({"nvme", "verify", dir_.file("absent")});
  EXPECT_EQ(result.exit_code, kExitStorage);
  EXPECT_THAT(result.err, AllOf(HasSubstr(dir_.file("absent")), HasSubstr("No such file")));
  const Json::Value object = run_json("verify", kExitStorage);
  EXPECT_EQ(object["exit_code"].asInt(), kExitStorage);
}

TEST_F(NvmeDirectory, SaysWhichFileOfAnUnreadableCommitIsDamaged) {
  commit_first(8);
  offload::test::flip_bit(dir_.file("manifest.json"), 30, 0);
  const ProgramResult result = run("verify");
  EXPECT_EQ(result.exit_code, kExitStorage);
  EXPECT_THAT(result.err, HasSubstr(dir_.file("manifest.json") + ": is damaged"));
}

TEST_F(NvmeDirectory, VerifiesTheNewestCheckpointOfADirectoryOfCheckpoints) {
  leave_checkpoints();
  const Json::Value object = run_json("verify", 0);
  EXPECT_EQ(object["directory"].asString(), dir_.file("step-00000012"));
  EXPECT_EQ(object["step"].asInt64(), 12);
}

TEST_F(NvmeDirectory, OfCheckpointsIsClearedOfThoseThatWereNotFinished) {
  leave_checkpoints();
  const Json::Value listed = run_json("clean", 0, {"--dry-run"});
  EXPECT_EQ(listed["kept_step"].asInt64(), 12);
  ASSERT_EQ(listed["checkpoints"].size(), 2U);
  EXPECT_EQ(listed["checkpoints"][0].asInt64(), 3);
  ASSERT_EQ(listed["files"].size(), 2U);
  EXPECT_EQ(listed["files"][0]["file"].asString(), dir_.file("step-00000015.tmp/states.0.swap"));
  const ProgramResult result = run("clean");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, ContainsRegex("step-00000015.tmp/states.0.swap +12.0 KiB  checkpoint "
                                        "that was not finished\nstep-00000015.tmp/ "));
  EXPECT_THAT(last_line(result.out), HasSubstr(": removed 1 file and 1 folder, "));
  EXPECT_THAT(last_line(result.out),
              HasSubstr(" freed; checkpoints of steps 3 and 12 stay committed"));
  EXPECT_THAT(names_there(), ElementsAre("step-00000003", "step-00000012"));
  EXPECT_EQ(run("verify").exit_code, 0);
}

TEST_F(NvmeDirectory, OfCheckpointsIsEmptiedWithCommitted) {
  leave_checkpoints();
  const std::string one = dir_.file("step-00000003");
  const ProgramResult first = run_sluice({"nvme", "clean", one + "/", "--committed"});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, ContainsRegex("\n\\./ +[0-9.]+ [a-zA-Z]+  folder of a checkpoint\n"));
  EXPECT_THAT(last_line(first.out), HasSubstr("3 files and 1 folder"));
  EXPECT_FALSE(fs::exists(one));
  EXPECT_THAT(run("clean", {"--committed", "--dry-run"}).out,
              HasSubstr("; checkpoint of step 12 would be lost"));
  const Json::Value object = run_json("clean", 0, {"--committed"});
  EXPECT_EQ(object["removed_step"].asInt64(), 12);
  EXPECT_TRUE(names_there().empty());
}

TEST_F(NvmeDirectory, IsLeftAloneWhileARunHasIt) {
  commit_first(8);
  leave_leftovers();
  const std::vector<std::string> before = names_there();
  const offload::DirectoryLock run_at_work(dir_.path(), offload::DirectoryLock::Mode::exclusive);
  for (const std::vector<std::string>& line :
       {std::vector<std::string>{"verify"}, std::vector<std::string>{"clean"},
        std::vector<std::string>{"clean", "--dry-run"},
        std::vector<std::string>{"clean", "--committed"}}) {
    const ProgramResult result = run(line[0], {line.begin() + 1, line.end()});
    EXPECT_EQ(result.exit_code, kExitStorage);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr(in_use_by_this_process()));
  }
  EXPECT_EQ(names_there(), before);
}

TEST_F(NvmeDirectory, IsClearedOfLeftoversAndStaysWhole) {
  commit_first(8);
  leave_leftovers();
  const std::string states = file_text(slot_);
  const std::string manifest = file_text(dir_.file("manifest.json"));
  const ProgramResult result = run("clean");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* name :
       {"scratch.spill.swap", "manifest.json.tmp", "states.1.swap", "bench.sluice"}) {
    EXPECT_THAT(result.out, ContainsRegex(std::string(name) + " +[0-9.]+ [KM]iB  "));
  }
  EXPECT_THAT(last_line(result.out),
              ContainsRegex(": removed 4 files, 4\\.[0-9]+ MiB freed; step 8 stays committed$"));
  EXPECT_THAT(names_there(), ElementsAre("lock", "manifest.json", "notes.txt", "states.0.swap"));
  EXPECT_TRUE(states == file_text(slot_));
  EXPECT_EQ(manifest, file_text(dir_.file("manifest.json")));
  EXPECT_EQ(run("verify").exit_code, 0);
  EXPECT_THAT(run("clean").out, HasSubstr(": nothing to remove; step 8 stays committed"));
}

TEST_F(NvmeDirectory, KeepsTheFileOfABenchThatIsMeasuring) {
  commit_first(8);
  leave_leftovers();
  const std::string bench_file = dir_.file(std::string(nvme::kBenchFileName));
  const UniqueFd held(::open(bench_file.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(held.get(), LOCK_EX | LOCK_NB), 0);
  for (const char* flag : {"--dry-run", "--committed"}) {
    const ProgramResult result = run("clean", {flag});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr(bench_file + ": is measured now by another program"));
    EXPECT_THAT(result.out, Not(HasSubstr("file of a bench")));
  }
  EXPECT_THAT(names_there(), ElementsAre("bench.sluice", "notes.txt"));
  EXPECT_EQ(run_json("clean", 0)["measured_files"][0].asString(), bench_file);
}

TEST_F(NvmeDirectory, ListsWithDryRunAndRemovesNothing) {
  commit_first(8);
  leave_leftovers();
  const std::vector<std::string> before = names_there();
  const Json::Value object = run_json("clean", 0, {"--dry-run"});
  EXPECT_EQ(names_there(), before);
  EXPECT_TRUE(object["dry_run"].asBool());
  EXPECT_EQ(object["kept_step"].asInt64(), 8);
  EXPECT_TRUE(object["removed_step"].isNull());
  ASSERT_EQ(object["files"].size(), 4U);
  std::uint64_t sum_bytes = 0;
  for (const Json::Value& file : object["files"]) sum_bytes += file["disk_bytes"].asUInt64();
  EXPECT_EQ(object["freed_bytes"].asUInt64(), sum_bytes);
  EXPECT_EQ(object["files"][1]["file"].asString(), dir_.file("scratch.spill.swap"));
  EXPECT_EQ(object["files"][1]["size_bytes"].asUInt64(), 10'000U);
  EXPECT_THAT(run("clean", {"--dry-run"}).out, HasSubstr(": would remove 4 files"));
}

TEST_F(NvmeDirectory, IsEmptiedOfARunWithCommittedAndOfNothingElse) {
  commit_first(8);
  leave_leftovers();
  EXPECT_THAT(run("clean", {"--committed", "--dry-run"}).out, HasSubstr("; step 8 would be lost"));
  const Json::Value object = run_json("clean", 0, {"--committed"});
  EXPECT_EQ(object["removed_step"].asInt64(), 8);
  EXPECT_TRUE(object["kept_step"].isNull());
  EXPECT_EQ(object["files"][0]["file"].asString(), dir_.file("manifest.json"));
  EXPECT_EQ(object["files"][object["files"].size() - 1]["file"].asString(), dir_.file("lock"));
  EXPECT_THAT(names_there(), ElementsAre("notes.txt"));
  EXPECT_THAT(run("clean", {"--committed"}).out,
              HasSubstr(": nothing to remove; nothing is committed"));
  commit_first(1);
  EXPECT_EQ(run("verify").exit_code, 0);
}

TEST_F(NvmeDirectory, IsClearedOfARunThatNeverCommitted) {
  create();
  EXPECT_THAT(run("clean").out, HasSubstr(": removed 2 files"));
  EXPECT_THAT(names_there(), ElementsAre("lock"));
}

}  // namespace
}  // namespace sluice::test
