// Units over the host device: gather, release, gradients home, with one rank and with several.

#include "sluice/zero/sharded_unit.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "message_of.hpp"
#include "rank_numbers.hpp"
#include "rank_units.hpp"
#include "sluice/base/error.hpp"
#include "wait_until_blocked.hpp"

namespace sluice::zero {
namespace {

using offload::Tier;
using sluice::test::message_of;
using test::floats;
using test::layout_of;
using test::Rank;
using test::set_zero;
using test::single;
using testing::HasSubstr;

// So large that the copy to the device is still under way when a gather that does not wait for it
// ends.
TEST(ShardedUnit, IsGatheredOnceItsLastElementHasArrived) {
  constexpr std::int64_t kElements = 16 << 20;
  const UnitLayout layout = layout_of("u", kElements, 1);
  Rank rank = single();
  const auto unit = rank.unit(layout);
  for (int i = 1; i <= 5; ++i) {
    std::ranges::fill(floats(rank, unit->weights_home()), static_cast<float>(i));
    GatherStall stall;
    unit->finish_gather(stall);
    EXPECT_EQ(floats(rank, unit->weights())[kElements - 1], static_cast<float>(i));
    unit->release();
  }
}

TEST(ShardedUnit, IsCurrentOnceItsUpdateHasEnded) {
  const UnitLayout layout = layout_of("u", 5000, 1);
  Rank rank = single();
  const auto unit = rank.unit(layout);
  const long waiting = sluice::test::thread_id();
  std::atomic<bool> updated = false;
  Worker updater("updater");
  unit->set_update(updater.begin([&] {
    sluice::test::wait_until_blocked(waiting);
    updated = true;
  }));
  GatherStall stall;
  unit->wait_current(stall);
  EXPECT_TRUE(updated);
}

TEST(ShardedUnit, GathersReleasesAndGathersAgain) {
  const UnitLayout layout = layout_of("u", 5000, 1);
  Rank rank = single();
  const auto unit = rank.unit(layout);
  std::fill_n(floats(rank, unit->weights_home()).begin(), layout.flat_count, 3.0F);
  GatherStall stall;
  const std::uint64_t before = rank.device->memory().usage().live_bytes;
  unit->finish_gather(stall);
  EXPECT_EQ(floats(rank, unit->weights())[4999], 3.0F);
  EXPECT_GT(rank.device->memory().usage().live_bytes, before);
  unit->release();
  EXPECT_EQ(rank.device->memory().usage().live_bytes, before);
  EXPECT_THROW(unit->weights(), InvalidArgument);
  unit->finish_gather(stall);
  EXPECT_EQ(floats(rank, unit->weights())[0], 3.0F);
}

TEST(ShardedUnit, WithItsHomeOnTheDeviceIsUsedWhereItLies) {
  const UnitLayout layout = layout_of("u", 100, 1);
  Rank rank = single();
  const auto unit = rank.unit(layout, Tier::device);
  GatherStall stall;
  unit->finish_gather(stall);
  EXPECT_EQ(unit->weights(), unit->weights_home().device_memory().first(unit->full_bytes()));
}

TEST(ShardedUnit, OnAHostDeviceMayBeUsedAtItsHomeInHostMemory) {
  const UnitLayout layout = layout_of("u", 5000, 1);
  Rank rank = single();
  rank.context.uses_host_homes = rank.context.sums_in_host_homes = true;
  const auto unit = rank.unit(layout);
  const std::uint64_t before = rank.device->memory().usage().live_bytes;
  GatherStall stall;
  unit->finish_gather(stall);
  EXPECT_EQ(unit->weights().address(), unit->weights_home().host_memory().data());
  double seconds = 0;
  for (int round = 1; round <= 2; ++round) {
    const offload::DeviceSpan fresh = unit->begin_accumulate();
    EXPECT_EQ(fresh.empty(), round > 1);  // the sum so far stays
    set_zero(rank, fresh);
    unit->restore_accumulated(seconds);
    for (float& value : floats(rank, unit->gradients())) value += 1.5F;
    unit->begin_reduce_home();
    unit->finish_reduce(seconds);
    EXPECT_EQ(floats(rank, unit->gradients_home())[99], 1.5F * static_cast<float>(round));
  }
  EXPECT_EQ(rank.device->memory().usage().live_bytes, before);
  EXPECT_EQ(rank.device->counters().in_bytes + rank.device->counters().out_bytes, 0U);
}

TEST(ShardedUnit, AGatherWaitsForTheUpdateAndCarriesItsError) {
  const UnitLayout layout = layout_of("u", 100, 1);
  Rank rank = single();
  const auto unit = rank.unit(layout);
  Worker updater("update");
  unit->set_update(updater.begin([&] { floats(rank, unit->weights_home())[0] = 7.0F; }));
  GatherStall stall;
  unit->finish_gather(stall);
  EXPECT_EQ(floats(rank, unit->weights())[0], 7.0F);
  unit->release();
  unit->set_update(updater.begin([] { throw Error("the drive is gone"); }));
  EXPECT_THROW(unit->finish_gather(stall), Error);
  EXPECT_EQ(unit->weight_state(), WeightState::sharded);
}

TEST(ShardedUnit, GradientsGoHomeAndAreContinuedFromThere) {
  const UnitLayout layout = layout_of("u", 100, 1);
  for (const Tier tier : {Tier::host, Tier::device}) {
    Rank rank = single();
    const auto unit = rank.unit(layout, tier);
    double stall = 0;
    for (int round = 1; round <= 2; ++round) {
      set_zero(rank, unit->begin_accumulate());
      unit->restore_accumulated(stall);
      for (float& value : floats(rank, unit->gradients())) value += 1.5F;
      unit->begin_reduce_home();
      unit->finish_reduce(stall);
      EXPECT_EQ(unit->gradient_state(), GradientState::waiting);
      EXPECT_EQ(floats(rank, unit->gradients_home())[99], 1.5F * static_cast<float>(round));
    }
    unit->consume_gradients();
    EXPECT_EQ(unit->gradient_state(), GradientState::none);
    EXPECT_THROW(unit->consume_gradients(), InvalidArgument);
  }
}

TEST(ShardedUnit, ACallInAWrongStateNamesTheStates) {
  const UnitLayout layout = layout_of("u", 100, 1);
  Rank rank = single();
  const auto unit = rank.unit(layout);
  double stall = 0;
  unit->finish_reduce(stall);  // nothing is reduced
  EXPECT_TRUE(unit->reduce_done());
  EXPECT_THAT(message_of<InvalidArgument>([&] { unit->consume_gradients(); }),
              HasSubstr("unit u: its gradients are in state none, this call needs state waiting"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { unit->restore_accumulated(stall); }),
              HasSubstr("this call needs state accumulating"));
}

TEST(ShardedUnit, AbandonedGradientsAreGoneWhereverTheyWere) {
  const UnitLayout layout = layout_of("u", 5000, 1);
  Rank rank = single();
  const auto unit = rank.unit(layout);
  double stall = 0;
  for (const int progress : {0, 1, 2, 3}) {  // none, accumulating, reducing, waiting
    if (progress > 0) std::fill_n(floats(rank, unit->begin_accumulate()).begin(), 5000, 2.0F);
    if (progress > 1) unit->begin_reduce_home();
    if (progress > 2) unit->finish_reduce(stall);
    unit->abandon_gradients();
    EXPECT_EQ(unit->gradient_state(), GradientState::none);
    EXPECT_EQ(rank.device->memory().usage().live_bytes, 0U);
  }
  // The next sum begins from what its caller zeroes.
  EXPECT_EQ(unit->begin_accumulate().size_bytes(), unit->full_bytes());
}

TEST(ShardedUnit, AKeptGradientBufferIsUsedByEveryStep) {
  const UnitLayout layout = layout_of("u", 5000, 1);
  Rank rank = single();
  const auto unit = rank.unit(layout);
  const std::uint64_t before = rank.device->memory().usage().live_bytes;
  unit->keep_gradient_buffer();
  const std::uint64_t kept = rank.device->memory().usage().live_bytes;
  EXPECT_GE(kept, before + unit->full_gradient_bytes());
  const void* address = nullptr;
  double seconds = 0;
  for (int step = 1; step <= 3; ++step) {
    const offload::DeviceSpan fresh = unit->begin_accumulate();
    EXPECT_EQ(fresh.size_bytes(), unit->full_gradient_bytes()) << "all of it is to be zeroed";
    if (address == nullptr) address = fresh.address();
    EXPECT_EQ(fresh.address(), address);
    set_zero(rank, fresh);
    unit->restore_accumulated(seconds);
    for (float& value : floats(rank, unit->gradients())) value += static_cast<float>(step);
    if (step == 2) {
      unit->abandon_gradients();
    } else {
      unit->begin_reduce_home();
      unit->finish_reduce(seconds);
      EXPECT_EQ(floats(rank, unit->gradients_home())[4999], static_cast<float>(step));
      unit->consume_gradients();
    }
    EXPECT_EQ(rank.device->memory().usage().live_bytes, kept);
  }
}

// Runs `body` on each rank's thread.
void on_ranks(int ranks, const std::function<void(Rank&, int)>& body) {
  auto main = make_thread_communicators(ranks);
  auto gather = make_thread_communicators(ranks);
  test::on_threads(main, [&](Communicator& communicator) {
    const auto index = static_cast<std::size_t>(communicator.rank());
    Rank rank(std::move(main[index]), std::move(gather[index]));
    body(rank, communicator.rank());
    communicator.barrier();
  });
}

TEST(ShardedUnit, RanksGatherEachOthersShardsAndReduceTheirGradients) {
  constexpr int kRanks = 3;
  const UnitLayout layout = layout_of("u", 10000, kRanks);
  on_ranks(kRanks, [&](Rank& rank, int r) {
    const auto unit = rank.unit(layout);
    for (float& value : floats(rank, unit->weights_home())) value = static_cast<float>(r);
    GatherStall stall;
    unit->finish_gather(stall);
    const auto weights = floats(rank, unit->weights());
    const std::size_t shard = layout.flat_count / kRanks;
    for (int other = 0; other < kRanks; ++other) {
      EXPECT_EQ(weights[static_cast<std::size_t>(other) * shard], static_cast<float>(other));
    }
    double waited = 0;
    for (int round = 1; round <= 2; ++round) {
      set_zero(rank, unit->begin_accumulate());
      unit->restore_accumulated(waited);
      for (float& value : floats(rank, unit->gradients())) value += static_cast<float>(r + 1);
      unit->begin_reduce_home();
      unit->finish_reduce(waited);
      EXPECT_EQ(floats(rank, unit->gradients_home())[0], 6.0F * static_cast<float>(round));
    }
  });
}

// Rank 0 of two, whose calls end when the test says so.
class HeldCalls final : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 2; }
  Ticket begin(const HostCall& call) override {
    labels.push_back(call.label);
    Ticket ticket = ends.emplace_back().ticket();
    begun = labels.size();  // from here on the test uses the rest
    return ticket;
  }
  void abort(const AbortReason&) override {}
  CommunicatorCounters counters() const override { return {}; }
  void observe(CallObserver) override {}

  std::vector<std::string> labels;
  std::vector<TicketSource> ends;
  std::atomic<std::size_t> begun{0};
};

// On a network, the next gather's data follows that of the one before without a gap.
TEST(ShardedUnit, AGatherIsBegunBeforeTheOneBeforeItEnds) {
  auto owned = std::make_unique<HeldCalls>();
  HeldCalls& calls = *owned;
  const UnitLayout first_layout = layout_of("h.1", 1000, 2);
  const UnitLayout second_layout = layout_of("h.2", 1000, 2);
  Rank rank(make_single_rank(), std::move(owned));
  const auto first = rank.unit(first_layout);
  const auto second = rank.unit(second_layout);
  first->begin_gather();
  second->begin_gather();
  while (calls.begun < 2) std::this_thread::yield();
  EXPECT_EQ(calls.labels,
            (std::vector<std::string>{"the weights of unit h.1", "the weights of unit h.2"}));
  calls.ends[0].complete();
  GatherStall stall;
  first->finish_gather(stall);
  EXPECT_EQ(second->weight_state(), WeightState::gathering);
  calls.ends[1].complete(std::make_exception_ptr(Error("rank 1 has left")));
  EXPECT_THROW(second->finish_gather(stall), Error);
  EXPECT_EQ(second->weight_state(), WeightState::sharded);
}

TEST(ShardedUnit, OfSeveralRanksNeedsItsWorkers) {
  const UnitLayout layout = layout_of("u", 1000, 2);
  for (Worker* UnitContext::*worker : {&UnitContext::arrival_worker, &UnitContext::reduce_worker}) {
    Rank rank(make_single_rank(), std::make_unique<HeldCalls>());
    rank.context.*worker = nullptr;
    EXPECT_THAT(message_of<InvalidArgument>([&] { rank.unit(layout); }),
                HasSubstr("unit u: several ranks need an arrival and a reduce worker"));
  }
}

TEST(ShardedUnit, DividesTheGradientsOfAllPartsOnce) {
  const UnitLayout layout = layout_of("u", 10000, 2);
  on_ranks(2, [&](Rank& rank, int r) {
    rank.context.sums = {.wire_dtype = DType::bf16, .divisor = 4};
    const auto unit = rank.unit(layout);
    double waited = 0;
    for (int part = 1; part <= 3; ++part) {
      set_zero(rank, unit->begin_accumulate());
      unit->restore_accumulated(waited);
      for (float& value : floats(rank, unit->gradients())) value += static_cast<float>(2 * r + 1);
      unit->begin_reduce_home();
      unit->finish_reduce(waited);
      EXPECT_EQ(floats(rank, unit->gradients_home())[0], static_cast<float>(part))
          << "(1 + 3) of each part, divided by 4";
    }
  });
}

TEST(ShardedUnit, WholeWeightsAreGatheredOnceAfterEachUpdateAndStayInPlace) {
  constexpr int kRanks = 2;
  const UnitLayout layout = layout_of("u", 10000, kRanks);
  on_ranks(kRanks, [&](Rank& rank, int r) {
    const std::size_t bytes = layout.flat_count * sizeof(float);
    ShardedUnit unit(layout, rank.context,
                     offload::TieredBytes(Tier::device, rank.device->memory().allocate(bytes, "w")),
                     {}, WeightsHome::whole);
    const std::uint64_t held = rank.device->memory().usage().live_bytes;
    for (int update = 1; update <= 3; ++update) {
      const auto value = [&](int of) { return static_cast<float>(10 * update + of); };
      std::ranges::fill(floats(rank, unit.weights_home()), value(r));
      unit.set_update(Ticket());
      for (int use = 0; use < 2; ++use) {
        GatherStall stall;
        unit.finish_gather(stall);
        for (int other = 0; other < kRanks; ++other) {
          const std::size_t first = static_cast<std::size_t>(other) * layout.flat_count / kRanks;
          const float changed = use == 1 && other == r ? -1 : value(other);
          EXPECT_EQ(floats(rank, unit.weights())[first], changed);
        }
        EXPECT_EQ(rank.device->memory().usage().live_bytes, held) << "gathered in place";
        unit.release();
        rank.communicator->barrier();
        // A second gather would copy this one to the other rank, which expects the first.
        if (use == 0) floats(rank, unit.weights_home())[0] = -1;
        rank.communicator->barrier();
      }
    }
  });
}

TEST(ShardedUnit, RefusesAContextWithoutOneOfItsServices) {
  const UnitLayout layout = layout_of("u", 100, 1);
  const std::vector<std::function<void(UnitContext&)>> lacks = {
      [](UnitContext& context) { context.device = nullptr; },
      [](UnitContext& context) { context.mover = nullptr; },
      [](UnitContext& context) { context.gather_worker = nullptr; },
      [](UnitContext& context) { context.gather_communicator = nullptr; },
      [](UnitContext& context) { context.communicator = nullptr; },
  };
  for (const auto& lack : lacks) {
    Rank rank = single();
    lack(rank.context);
    EXPECT_THROW(rank.unit(layout), InvalidArgument);
  }
}

TEST(ShardedUnit, AReduceWorkerSumsChecksAndStoresWithoutTheCaller) {
  constexpr int kRanks = 2;
  const UnitLayout layout = layout_of("u", 10000, kRanks);
  on_ranks(kRanks, [&](Rank& rank, int r) {
    const auto unit = rank.unit(layout);
    set_zero(rank, unit->begin_accumulate());
    for (float& value : floats(rank, unit->gradients())) value += static_cast<float>(r + 1);
    const auto caller = std::this_thread::get_id();
    float seen = 0;
    bool on_caller = true;
    unit->begin_reduce_home([&](offload::DeviceSpan shard) {
      on_caller = std::this_thread::get_id() == caller;
      seen = floats(rank, shard)[0];
    });
    EXPECT_EQ(unit->gradient_state(), GradientState::reducing);
    double stall = 0;
    unit->finish_reduce(stall);
    EXPECT_FALSE(on_caller);
    EXPECT_EQ(seen, 3.0F);
    EXPECT_EQ(floats(rank, unit->gradients_home())[0], 3.0F);
    // An error of the check is that of every end, until the unit is given up.
    set_zero(rank, unit->begin_accumulate());
    unit->begin_reduce_home([](offload::DeviceSpan) { throw Error("not this one"); });
    for (int i = 0; i < 2; ++i) {
      EXPECT_THROW(unit->finish_reduce(stall), Error);
      EXPECT_EQ(unit->gradient_state(), GradientState::reducing);
    }
    unit->abandon_gradients();
    EXPECT_EQ(unit->gradient_state(), GradientState::none);
  });
}

}  // namespace
}  // namespace sluice::zero
