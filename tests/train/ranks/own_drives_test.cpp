// Ranks whose swap directories are not reachable from each other, as on drives of several hosts:
// the ranks are threads, and each has a directory of its own where another rank's folder is absent.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "run/initial_weights.hpp"
#include "saved/checkpoint.hpp"
#include "saved/find_source.hpp"
#include "saved/rank_places.hpp"
#include "saved/swap_commit.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/host_name.hpp"
#include "sluice/base/rank_failure.hpp"
#include "sluice/offload/checkpoint_folder.hpp"
#include "sluice/plan/make_plan.hpp"
#include "temp_dir.hpp"
#include "thread_ranks.hpp"
#include "train/step/small_run.hpp"

namespace sluice::train {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRanks = 2;
constexpr std::uint64_t kSeed = 5;
constexpr std::int64_t kStep = 3;

class OwnDrives : public testing::TestWithParam<Durability> {
 protected:
  std::string drive_of(int rank) const { return dir_.file("host" + std::to_string(rank)); }
  std::string folder(int drive, int rank) const {
    return drive_of(drive) + "/rank" + std::to_string(rank) + "-of-2";
  }

  config::TrainConfig config_of(int rank) const {
    config::TrainConfig config = test::small_config();
    config.rank = rank;
    config.world_size = kRanks;
    config.train_batch_size = kRanks;
    config.zero.offload_optimizer.device = config::OffloadConfig::Device::nvme;
    config.zero.offload_optimizer.directories = {drive_of(rank)};
    config.sluice.durability = GetParam();
    return config;
  }
  static plan::Plan plan_of(const config::TrainConfig& config) {
    const config::TrainConfig own = with_rank_folders(config, plan::Placement::configured);
    return plan::make_plan(own, test::small_model(), plan::Placement::configured,
                           plan::probe_machine(own));
  }
  static void on_ranks(const std::function<void(int rank, zero::Ranks links)>& body) {
    std::vector<zero::Ranks> ranks = sluice::test::make_thread_ranks(kRanks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank)
      threads.emplace_back([&, rank] {
        EXPECT_NO_THROW(body(rank, std::move(ranks[static_cast<std::size_t>(rank)])));
      });
    for (std::thread& thread : threads) thread.join();
  }
  // Element r: of rank r.
  std::vector<RunSource> find(Resume resume, offload::HeldDirectories (&held)[kRanks]) const {
    std::vector<RunSource> sources(kRanks);
    on_ranks([&](int rank, zero::Ranks links) {
      const auto index = static_cast<std::size_t>(rank);
      sources[index] = find_source(config_of(rank), plan::Placement::configured, resume,
                                   held[index], *links.control);
    });
    return sources;
  }
  // With the memory of all tensors outside LibTorch: one process has both ranks.
  static RunResources make_resources(const plan::Plan& plan, const SwapStart& start,
                                     zero::Ranks links) {
    RunDevice host;
    host.device = offload::make_host_device({});
    return {
        plan,
        start,
        nullptr,
        std::move(host),
        {.communicator = std::move(links.compute), .gather_communicator = std::move(links.gather)}};
  }
  static std::string weights_of(RunResources& resources) {
    std::string all;
    zero::GatherStall stall;
    for (const auto& unit : resources.units) {
      unit->finish_gather(stall);
      const auto bytes = resources.device->host_view(unit->weights());
      all.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      unit->release();
    }
    return all;
  }

  // States are in memory.
  config::TrainConfig with_checkpoints(int rank, const std::string& directory) const {
    config::TrainConfig config = config_of(rank);
    config.zero.offload_optimizer = test::small_config().zero.offload_optimizer;
    config.sluice.checkpoints.directory = directory;
    return config;
  }
  // The answer of each rank at the start, to its configuration; empty: none.
  std::vector<std::string> said_of(const std::function<config::TrainConfig(int rank)>& config,
                                   Resume resume) const {
    std::vector<std::string> said(kRanks);
    on_ranks([&](int rank, zero::Ranks links) {
      offload::HeldDirectories held;
      std::string& text = said[static_cast<std::size_t>(rank)];
      try {
        (void)find_source(config(rank), plan::Placement::configured, resume, held, *links.control);
      } catch (const RankFailure& error) {
        text = "failure: " + std::string(error.what());
        EXPECT_EQ(error.kind(), resume == Resume::no ? FailureKind::usage : FailureKind::storage);
      } catch (const Error& error) {
        text = error.what();
      }
    });
    return said;
  }

  // Commits a step on all ranks, and ends in order. Returns each rank's weights.
  std::vector<std::string> commit() const {
    offload::HeldDirectories held[kRanks];
    (void)find(Resume::no, held);
    std::vector<std::string> weights(kRanks);
    on_ranks([&](int rank, zero::Ranks links) {
      const auto index = static_cast<std::size_t>(rank);
      const plan::Plan plan = plan_of(config_of(rank));
      RunResources resources =
          make_resources(plan, {SwapMode::create, &held[index]}, std::move(links));
      initialise_states(resources, kSeed, std::nullopt);
      Progress progress;
      begin_progress(progress, *resources.communicator);
      progress.step = progress.order = kStep;
      commit_swap(resources, make_run_state(plan, progress, {.seed = kSeed, .settings = {}}));
      close_swap(resources);
      weights[index] = weights_of(resources);
    });
    return weights;
  }

 private:
  void SetUp() override {
    for (int rank = 0; rank < kRanks; ++rank) fs::create_directory(drive_of(rank));
  }
  const sluice::test::TempDir dir_;
};

TEST_P(OwnDrives, AsManyRanksGoOnEachFromItsOwnPart) {
  const std::vector<std::string> expected = commit();
  ASSERT_FALSE(fs::exists(folder(0, 1)));
  ASSERT_FALSE(fs::exists(folder(1, 0)));
  offload::HeldDirectories held[kRanks];
  const std::vector<RunSource> sources = find(Resume::yes, held);
  on_ranks([&](int rank, zero::Ranks links) {
    const auto index = static_cast<std::size_t>(rank);
    const plan::Plan plan = plan_of(config_of(rank));
    RunResources resources = make_resources(plan, {SwapMode::open, &held[index]}, std::move(links));
    EXPECT_NO_THROW(restore_states(resources, sources[index]));
    Progress progress;
    resume_progress(progress, sources[index], *resources.communicator);
    EXPECT_EQ(progress.step, kStep);
    EXPECT_EQ(weights_of(resources), expected[index]);
  });
  EXPECT_FALSE(fs::exists(folder(0, 1)));
}

TEST_P(OwnDrives, ARankOnAnotherHostIsToldWhosePartsLieThere) {
  commit();
  // Rank 1 is on the host of rank 0, or on a third one.
  const auto with_drive = [&](int drive) {
    return [=, this](int rank) {
      config::TrainConfig config = config_of(rank);
      if (rank == 1) config.zero.offload_optimizer.directories = {drive_of(drive)};
      return config;
    };
  };
  const std::string lacks =
      "/rank1-of-2: does not hold this rank's part of the step that is committed on all ranks: ";
  std::vector<std::string> said = said_of(with_drive(0), Resume::yes);
  EXPECT_THAT(said[1],
              AllOf(HasSubstr(drive_of(0) + lacks + drive_of(0) + " on host " + host_name() +
                              " has that of rank 0 of 2. Start the ranks on "
                              "the hosts that they had before"),
                    Not(HasSubstr("nvme clean"))));
  EXPECT_THAT(said[0], HasSubstr("failure: " + drive_of(0) + ": rank 1: "));
  EXPECT_FALSE(fs::exists(folder(0, 1)));
  fs::create_directory(drive_of(2));
  said = said_of(with_drive(2), Resume::yes);
  EXPECT_THAT(said[1], HasSubstr(lacks + drive_of(2) + " on host " + host_name() +
                                 " has no part of it. Start the ranks on the hosts"));
  EXPECT_THAT(said[1], HasSubstr("where this one is lost, remove the run on every host (sluice "
                                 "nvme clean " +
                                 drive_of(2) + " --committed)"));
  EXPECT_THAT(said_of(with_drive(1), Resume::yes), Each("")) << "the run is whole";
}

class OwnCheckpoints : public OwnDrives {};

TEST_P(OwnCheckpoints, AreFoundAtTheStartWithRankHostAndDirectory) {
  const std::string mine = drive_of(0);
  const std::string other = drive_of(1);
  const auto said_in = [&](const std::vector<std::string>& directories) {
    return said_of(
        [&](int rank) {
          return with_checkpoints(rank, directories[static_cast<std::size_t>(rank)]);
        },
        Resume::no);
  };
  EXPECT_THAT(said_in({mine, mine}), Each(""));
  for (const std::string& place : {other, other + "/absent"}) {
    const std::vector<std::string> said = said_in({mine, place});
    const std::string how =
        place == other ? " is not that of rank 0 on host " : ", and is there for rank 0 on host ";
    EXPECT_THAT(said[1], AllOf(HasSubstr(place), HasSubstr("rank 1 on host " + host_name() + how),
                               HasSubstr("all ranks need one directory")));
    EXPECT_EQ(said[0], "failure: " + mine + ": rank 1: " + said[1]);
  }
  EXPECT_TRUE(fs::is_empty(mine));
  EXPECT_TRUE(fs::is_empty(other));
}

// As where a directory of the script's own choice is saved to, or a server's mount goes in mid-run.
TEST_P(OwnCheckpoints, FailWithRankHostAndDirectoryAndLeaveNoDraft) {
  const std::vector<std::string> directories{drive_of(0), drive_of(1)};
  // A draft of rank 0 that an earlier run has left.
  fs::create_directory(offload::checkpoint_draft_path(drive_of(1), kStep));
  on_ranks([&](int rank, zero::Ranks links) {
    const auto index = static_cast<std::size_t>(rank);
    const plan::Plan plan = plan_of(with_checkpoints(rank, directories[index]));
    RunResources resources = make_resources(plan, {SwapMode::create}, std::move(links));
    initialise_states(resources, kSeed, std::nullopt);
    Progress progress;
    begin_progress(progress, *resources.communicator);
    progress.step = progress.order = kStep;
    CheckpointWriter writer(resources);
    try {
      write_checkpoint(writer, progress, {.seed = kSeed, .settings = {}}, directories[index]);
      ADD_FAILURE() << "rank " << rank << " has written a checkpoint of its own";
    } catch (const std::exception& error) {
      EXPECT_EQ(failure_kind(std::current_exception()), FailureKind::storage);
      EXPECT_THAT(error.what(), HasSubstr(drive_of(1) + " of rank 1 on host " + host_name() +
                                          " is not that of rank 0"));
    }
  });
  EXPECT_TRUE(fs::is_empty(drive_of(0)));
}

INSTANTIATE_TEST_SUITE_P(One, OwnCheckpoints, testing::Values(Durability::process));
INSTANTIATE_TEST_SUITE_P(Kept, OwnDrives,
                         testing::Values(Durability::none, Durability::process, Durability::power),
                         [](const auto& each) { return std::string(name_of(each.param)); });

}  // namespace
}  // namespace sluice::train
