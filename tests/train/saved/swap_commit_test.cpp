// The words for the state that is left after an error.

#include "saved/swap_commit.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <filesystem>
#include <string>

#include "saved/checkpoint.hpp"
#include "saved/saved_state.hpp"
#include "sluice/base/error.hpp"
#include "soft_limit.hpp"
#include "train/device/device_run.hpp"

namespace sluice::train {
namespace {

using test::Home;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A run whose swap directory has its initial states, and no commit.
class SwapCommits : public test::DeviceRun {
 protected:
  SwapCommits() { initialise_states(resources_, kSeed, std::nullopt); }
  void commit_first() {
    Progress progress;
    begin_progress(progress, *resources_.communicator);
    progress.step = 1;
    commit_swap(resources_, make_run_state(plan_, progress, {.seed = kSeed, .settings = {}}));
  }

  const plan::Plan plan_ =
      plan_of({.name = "nvme", .states = Home::nvme, .weights = Home::nvme}, false);
  RunResources resources_ = test::make_resources(plan_, {SwapMode::create});
};

TEST_F(SwapCommits, ASwapDirectoryThatCannotBeReadIsNotSaidToBeGone) {
  commit_first();
  EXPECT_THAT(what_is_saved(resources_, 0), HasSubstr("step 1 is committed"));
  const std::string manifest = resources_.files.store->directory() + "/manifest.json";
  std::filesystem::rename(manifest, manifest + ".away");
  EXPECT_THAT(what_is_saved(resources_, 0), HasSubstr("is gone"));
  std::filesystem::create_symlink(manifest, manifest);  // a loop
  EXPECT_THAT(what_is_saved(resources_, 0), HasSubstr("step 1 is committed"));
}

TEST_F(SwapCommits, AStateThatIsCutOffIsNotGoneOnFrom) {
  commit_first();
  const std::string& directory = resources_.files.store->directory();
  for (const char* slot : {"/states.0.swap", "/states.1.swap"})
    std::filesystem::resize_file(directory + slot, 4096);
  EXPECT_THAT(what_is_saved(resources_, 0),
              AllOf(StartsWith("step 1 was committed, and --resume cannot go on from it"),
                    HasSubstr("is cut off")));
  const IoError of_storage(EIO, "read", "/drive/states", 0, 0);
  EXPECT_EQ(what_may_be_lost(resources_, 0, std::make_exception_ptr(of_storage)), "");
}

// As where a link fails between rank 0's ranks.json and the answers of the other ranks.
TEST_F(SwapCommits, ACommitInDoubtIsSaidToBeOneOfTwo) {
  for (std::size_t u = 0; u < resources_.units.size(); ++u)
    resources_.updater->begin_write_back(u).finish();
  offload::SwapStore& store = *resources_.files.store;
  store.prepare_commit(1, "{}");
  EXPECT_THAT(what_is_saved(resources_, 0), HasSubstr("not known whether step 1 is committed"));
  store.finish_commit();
  EXPECT_THAT(what_is_saved(resources_, 0), StartsWith("step 1 is committed"));
  store.prepare_commit(2, "{}");
  EXPECT_THAT(what_is_saved(resources_, 0), StartsWith("step 1 or 2 is committed"));
  EXPECT_THAT(what_is_saved(resources_, 5), StartsWith("step 5 is committed"));
  store.abandon_commit();
  EXPECT_THAT(what_is_saved(resources_, 0), StartsWith("step 1 is committed"));
}

TEST_F(SwapCommits, AreSyncedAfterErrorsOfStorageAlone) {
  commit_first();
  const auto said_after = [&](const auto& error, std::int64_t checkpoint_step) {
    const sluice::test::SoftLimit no_further_file(RLIMIT_NOFILE, 0);
    return what_may_be_lost(resources_, checkpoint_step, std::make_exception_ptr(error));
  };
  const IoError of_storage(EIO, "write", "/drive/states", 0, 0);
  EXPECT_THAT(said_after(of_storage, 0),
              AllOf(StartsWith("step 1 may not be on its drive ("), HasSubstr("Too many open"),
                    HasSubstr(resources_.files.store->directory())));
  EXPECT_EQ(said_after(of_storage, 1), "") << "the checkpoint has it";
  EXPECT_EQ(said_after(InvalidArgument("the loss is not finite"), 0), "");
  EXPECT_EQ(what_may_be_lost(resources_, 0, std::make_exception_ptr(of_storage)), "");
}

}  // namespace
}  // namespace sluice::train
