// Ranks agree at the start of a run; the ranks are threads.

#include "ranks/rank_group.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "message_of.hpp"
#include "ranks/rank_numbers.hpp"
#include "ranks/same_config.hpp"
#include "ranks/same_inputs.hpp"
#include "ranks/shared_facts.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/host_name.hpp"
#include "thread_ranks.hpp"

namespace sluice::train {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Runs `body` as each of `size` ranks; returns what each threw: its kind and text.
std::vector<std::string> as_ranks(int size, const std::function<void(RankGroup&)>& body) {
  std::vector<zero::Ranks> ranks = sluice::test::make_thread_ranks(size);
  std::vector<std::string> thrown(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      const auto index = static_cast<std::size_t>(r);
      RankGroup group(
          std::move(ranks[index]),
          {.rank = r, .size = size, .local_rank = r, .local_size = size, .launcher = {}});
      try {
        body(group);
      } catch (const RankFailure& failure) {
        thrown[index] = "failure of another: " + std::string(failure.what());
      } catch (const std::exception& error) {
        thrown[index] = error.what();
      }
      group.exchange("", "the end");
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

TEST(RankGroup, ExchangesTextsOfDifferentLengths) {
  EXPECT_THAT(as_ranks(3,
                       [](RankGroup& ranks) {
                         const std::string mine(static_cast<std::size_t>(ranks.rank() * 5), 'x');
                         EXPECT_THAT(ranks.exchange(mine, "texts"),
                                     ElementsAre("", std::string(5, 'x'), std::string(10, 'x')));
                         EXPECT_EQ(ranks.largest(ranks.rank() == 1 ? 15 : 0, "numbers"), 15);
                       }),
              ElementsAre("", "", ""));
}

TEST(RankGroup, OnlyTheRankThatFailedThrowsItsError) {
  const auto thrown = as_ranks(3, [](RankGroup& ranks) {
    ranks.together("a part", [&] {
      if (ranks.rank() == 1) throw StorageError("dir", "is full");
    });
    ADD_FAILURE() << "the part failed";
  });
  EXPECT_THAT(thrown[1], HasSubstr("is full"));
  for (const int other : {0, 2}) {
    EXPECT_THAT(thrown[static_cast<std::size_t>(other)],
                HasSubstr("failure of another: rank 1: dir: is full"));
  }
}

// A mistake in a shared file is found by every rank and shown once; another one is shown too.
TEST(RankGroup, AnErrorOfAllRanksIsThatOfTheFirst) {
  const auto thrown = as_ranks(3, [](RankGroup& ranks) {
    ranks.together("a part", [&] {
      throw InvalidArgument(ranks.rank() == 2 ? "another mistake" : "one mistake");
    });
  });
  EXPECT_EQ(thrown[0], "one mistake");
  EXPECT_EQ(thrown[1], "failure of another: rank 0: one mistake");
  EXPECT_EQ(thrown[2], "another mistake");
}

TEST(RankGroup, APlanThatDoesNotFitIsShownByOneRank) {
  const auto thrown = as_ranks(3, [](RankGroup& ranks) {
    ranks.together("the plan", [&] {
      if (ranks.rank() > 0) throw DoesNotFit("cuda:" + std::to_string(ranks.rank()));
    });
  });
  EXPECT_THAT(thrown, ElementsAre(HasSubstr("failure of another"), "cuda:1",
                                  HasSubstr("failure of another")));
}

TEST(SameInputs, NamesTheRankAndTheInputThatDiffer) {
  const auto thrown = as_ranks(3, [](RankGroup& ranks) {
    require_same_inputs(ranks, {{"model", "equal"}, {"data", ranks.rank() == 2 ? "b" : "a"}});
  });
  const std::string line =
      "rank 2 has another data than rank 0: all ranks of a run need the same one";
  EXPECT_EQ(thrown[0], line);
  EXPECT_EQ(thrown[1], "failure of another: " + line);
  EXPECT_EQ(thrown[2], "failure of another: " + line);
}

TEST(SameConfig, NamesEveryConstantThatDiffers) {
  using Optimizer = config::OptimizerConfig;
  const Optimizer usual;
  Optimizer::visit(usual, [](const std::string& name, const auto&...) {
    const auto thrown = as_ranks(2, [&](RankGroup& ranks) {
      config::TrainConfig config;
      Optimizer::visit(config.optimizer, [&](const std::string& other, auto&... values) {
        if (other == name && ranks.rank() == 1) ((values = values == 0), ...);
      });
      require_same_config(ranks.control(), config);
    });
    EXPECT_THAT(thrown, Each(HasSubstr("train different things: optimizer.params." + name)));
  });
}

TEST(SharedFacts, RanksOfAHostDivideWhatItHas) {
  plan::MachineFacts facts;
  facts.available_memory_bytes = 8 * kGiB;
  facts.memlock_bytes = 4 * kMiB;
  facts.cores = 6;
  const RankPlace place{.rank = 1, .size = 8, .local_rank = 1, .local_size = 4, .launcher = {}};
  const plan::MachineFacts share = share_of_host(facts, place);
  EXPECT_EQ(share.available_memory_bytes, 2 * kGiB);
  EXPECT_EQ(share.memlock_bytes, kMiB);
  EXPECT_EQ(share.cores, 1);
  EXPECT_EQ(share_of_host(facts, {}).cores, 6);
}

TEST(SharedFacts, RanksThatShareAGpuDivideItsMemory) {
  as_ranks(4, [](RankGroup& ranks) {
    plan::MachineFacts facts;
    if (ranks.rank() < 3) {
      // Each may see its own GPU as the first.
      facts.device.gpu = {.index = 0, .name = "a GPU", .free_bytes = 8 * kGiB};
      facts.device.gpu->bus_id = ranks.rank() == 1 ? "0000:1b:00.0" : "0000:3a:00.0";
    }
    share_gpu(facts, ranks.control());
    EXPECT_EQ(facts.device.gpu.has_value(), ranks.rank() < 3);
    if (!facts.device.gpu) return;
    EXPECT_EQ(facts.device.gpu->ranks, ranks.rank() == 1 ? 1 : 2);
    EXPECT_EQ(facts.device.gpu->free_bytes, (ranks.rank() == 1 ? 8 : 4) * kGiB);
  });
}

// A device that is named by its number is that of all ranks.
TEST(SharedFacts, ANamedDeviceIsThatOfEveryRank) {
  const RankPlace third{.rank = 2, .size = 4, .local_rank = 2, .local_size = 4, .launcher = {}};
  using Kind = config::ComputeDevice::Kind;
  EXPECT_EQ(device_of_rank({Kind::cuda, 1}, third).index, 1);
  EXPECT_EQ(device_of_rank({Kind::host}, third).kind, Kind::host);
}

TEST(SharedFacts, EveryRankPlansWithTheLargestWorkspaces) {
  as_ranks(3, [&](RankGroup& ranks) {
    models::UnitWorkspaces mine;
    mine.measured = true;
    mine.micro_batch = 4;
    mine.block.backward_bytes = ranks.rank() == 1 ? 900 : 800;
    mine.held_bytes = ranks.rank() == 2 ? 7 : 5;
    const models::UnitWorkspaces largest = largest_workspaces(ranks, mine);
    EXPECT_EQ(largest.block.backward_bytes, 900U);
    EXPECT_EQ(largest.head.backward_bytes, 0U);
    EXPECT_EQ(largest.held_bytes, 7U);
    EXPECT_TRUE(largest.measured);
    EXPECT_EQ(largest.micro_batch, 4);
  });
}

TEST(StoreOfRanks, GivesEveryRankWhatOneHasSet) {
  as_ranks(3, [](RankGroup& ranks) {
    const std::unique_ptr<zero::RankStore> store = ranks.meet();
    const std::string bytes("a\0b", 3);
    EXPECT_EQ(store->get("unset", std::chrono::milliseconds(20)), std::nullopt);
    if (ranks.rank() == 1) store->set("id", bytes);
    EXPECT_EQ(store->get("id", std::chrono::seconds(20)), bytes);
    if (ranks.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the others wait for it
      store->set("late", "");
    }
    EXPECT_EQ(store->get("late", std::chrono::seconds(20)), "");
    EXPECT_EQ(ranks.exchange("", "the end of the store").size(), 3U);
  });
}

TEST(StoreOfRanks, SaysThatRankZeroMayHaveEnded) {
  as_ranks(2, [](RankGroup& ranks) {
    std::unique_ptr<zero::RankStore> store = ranks.meet();
    if (ranks.is_first()) store.reset();
    ranks.exchange("", "the end of the store");
    if (ranks.is_first()) return;
    const std::string said = sluice::test::message_of<Error>([&] {
      store->set("key", "value");
      static_cast<void>(store->get("key", std::chrono::seconds(1)));
    });
    EXPECT_THAT(said, HasSubstr("has rank 0 ended?"));
  });
}

TEST(SharedFacts, EveryRankPlansWithTheLeastOfAll) {
  const config::TrainConfig config = config::parse_train_config(
      R"({"train_batch_size": 6, "sluice": {"device": "host"}})", "ds.json", {.world_size = 3});
  std::vector<plan::MachineFacts> all(3);
  as_ranks(3, [&](RankGroup& ranks) {
    all[static_cast<std::size_t>(ranks.rank())] = shared_facts(ranks, config);
  });
  EXPECT_GT(all[0].available_memory_bytes, 0U);
  for (const int rank : {1, 2}) {
    const auto& other = all[static_cast<std::size_t>(rank)];
    EXPECT_EQ(other.available_memory_bytes, all[0].available_memory_bytes);
    EXPECT_EQ(other.cores, all[0].cores);
    EXPECT_EQ(other.memlock_bytes, all[0].memlock_bytes);
  }
}

TEST(SharedFacts, RanksOfAScriptTakeTheLeast) {
  as_ranks(3, [&](RankGroup& ranks) {
    const auto rank = static_cast<std::uint64_t>(ranks.rank());
    plan::MachineFacts facts;
    facts.available_memory_bytes = (8 - rank) * kGiB;
    facts.memlock_bytes = (1 + rank) * kMiB;
    facts.cores = ranks.rank() == 1 ? 2 : 4;
    facts.free_disk_bytes = {{"/a", (10 + rank) * kGiB}, {"/b", (10 - rank) * kGiB}};
    take_least(facts, ranks.control());
    EXPECT_EQ(facts.available_memory_bytes, 6 * kGiB);
    EXPECT_EQ(facts.memlock_bytes, kMiB);
    EXPECT_EQ(facts.cores, 2);
    EXPECT_EQ(facts.free_disk_bytes[0].second, 10 * kGiB);
    EXPECT_EQ(facts.free_disk_bytes[1].second, 8 * kGiB);
    EXPECT_EQ(facts.poorest.memory, "rank 2 on host " + host_name());
    EXPECT_EQ(facts.poorest.memlock, "rank 0 on host " + host_name());
  });
}

// Each rank's folder is on a drive of its own.
TEST(SharedFacts, NameTheFolderAndHostOfTheSmallestDrive) {
  as_ranks(3, [&](RankGroup& ranks) {
    const int rank = ranks.rank();
    plan::MachineFacts facts;
    facts.free_disk_bytes = {{"/a/rank" + std::to_string(rank) + "-of-3", rank == 1 ? kMiB : kGiB},
                             {"/saved", kGiB}};
    take_least(facts, ranks.control());
    EXPECT_THAT(facts.poorest.disks, ElementsAre("/a/rank1-of-3 of rank 1 on host " + host_name(),
                                                 "/saved of rank 0 on host " + host_name()));
  });
}

// No rank goes on alone with a plan that the others do not have.
TEST(SharedFacts, EveryRankOfAScriptRefusesFactsThatHaveNoLeast) {
  const auto without_gpu = as_ranks(3, [](RankGroup& ranks) {
    plan::MachineFacts facts;
    if (ranks.rank() != 2)
      facts.device.gpu = {.index = 0, .name = "a GPU", .total_bytes = 8 * kGiB};
    take_least(facts, ranks.control());
  });
  EXPECT_THAT(without_gpu,
              Each(AllOf(HasSubstr("rank 2 and rank 0: one has a GPU, and one has none"),
                         Not(HasSubstr("failure of another")))));
  // A rank's directories have its own folders.
  const auto without_directory = [](int rank_that_lacks) {
    return as_ranks(2, [rank_that_lacks](RankGroup& ranks) {
      const std::string folder = "/rank" + std::to_string(ranks.rank()) + "-of-2";
      plan::MachineFacts facts;
      facts.free_disk_bytes = {{"/a" + folder, kGiB}};
      if (ranks.rank() != rank_that_lacks) facts.free_disk_bytes.emplace_back("/b" + folder, kGiB);
      take_least(facts, ranks.control());
    });
  };
  EXPECT_THAT(without_directory(1),
              Each(HasSubstr("rank 1 does not have the directory /b, which rank 0 has")));
  EXPECT_THAT(without_directory(0),
              Each(HasSubstr("rank 0 does not have the directory /b, which rank 1 has")));
}

TEST(SamePlan, EveryRankOfAScriptRefusesAnotherPlan) {
  const auto thrown = as_ranks(3, [](RankGroup& ranks) {
    plan::Plan plan;
    require_same_plan(ranks.control(), plan);
    plan.schedule.prefetch_units = ranks.rank() == 1 ? 2 : 1;
    require_same_plan(ranks.control(), plan);
  });
  EXPECT_THAT(thrown, Each(HasSubstr("rank 1 plans this model otherwise than rank 0 does")));
}

TEST(RankNumbers, AreThoseOfEveryRankInOrder) {
  as_ranks(2, [](RankGroup& ranks) {
    const RankNumbers all =
        gather_numbers(ranks, {{"a", "b"}, {{ranks.rank() + 0.1, 1e-300 * ranks.rank()}}});
    EXPECT_THAT(all.by_rank, ElementsAre(ElementsAre(0.1, 0.0), ElementsAre(1.1, 1e-300)));
  });
  RankGroup alone;
  EXPECT_TRUE(gather_numbers(alone, {{"a"}, {{1.0}}}).by_rank.empty());
}

}  // namespace
}  // namespace sluice::train
