// Ranks agree at the start of a run; the ranks are threads.

#include "ranks/rank_group.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "ranks/rank_numbers.hpp"
#include "ranks/same_inputs.hpp"
#include "ranks/shared_facts.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"

namespace sluice::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Runs `body` as each of `size` ranks; returns what each threw: its kind and text.
std::vector<std::string> as_ranks(int size, const std::function<void(RankGroup&)>& body) {
  std::vector<zero::Ranks> ranks = zero::make_thread_ranks(size);
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
  facts.device.gpu = plan::GpuFacts{};
  EXPECT_THROW(share_of_host(facts, place), InvalidArgument);
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
