// Loops near their memory, on imaginary machines with several NUMA nodes.

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "executors.hpp"
#include "fake_numa.hpp"
#include "loop.hpp"
#include "message_of.hpp"

namespace sluice {
namespace {

using test::FakeNuma;
using test::Nodes;

// The order in which one thread on node `here` takes the bodies.
std::vector<std::size_t> order_on(const FakeNuma& numa, int here) {
  std::vector<std::size_t> order;
  const std::function<void(std::size_t)> body = [&](std::size_t i) { order.push_back(i); };
  NearLoop loop(
      numa, numa.count(), [&](std::size_t i) { return numa.memory_of(i); }, body);
  FakeNuma::here = here;
  loop.run();
  FakeNuma::here = 0;
  return order;
}

TEST(NearLoop, TakesTheOwnNodesMemoryFirstThenHelpsTheOthers) {
  const FakeNuma numa(3, {0, 1, 2, 0, 1, 2});
  EXPECT_EQ(order_on(numa, 0), (std::vector<std::size_t>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(order_on(numa, 1), (std::vector<std::size_t>{1, 4, 2, 5, 0, 3}));
  EXPECT_EQ(order_on(numa, 2), (std::vector<std::size_t>{2, 5, 0, 3, 1, 4}));
}

TEST(NearLoop, TakesMemoryOfNoKnownNodeToo) {
  const FakeNuma numa(2, {Numa::kUnknown, 1, Numa::kUnknown, 0});
  EXPECT_EQ(order_on(numa, 1), (std::vector<std::size_t>{1, 0, 2, 3}));
  EXPECT_EQ(order_on(FakeNuma(2, Nodes(3, Numa::kUnknown)), 0),
            (std::vector<std::size_t>{0, 1, 2}));
}

TEST(NearLoop, FollowsAThreadThatMoves) {
  const FakeNuma numa(2, {0, 0, 1, 1});
  std::vector<std::size_t> order;
  const std::function<void(std::size_t)> body = [&](std::size_t i) {
    order.push_back(i);
    FakeNuma::here = 1;
  };
  NearLoop loop(
      numa, numa.count(), [&](std::size_t i) { return numa.memory_of(i); }, body);
  loop.run();
  FakeNuma::here = 0;
  EXPECT_EQ(order, (std::vector<std::size_t>{0, 2, 3, 1}));
}

TEST(NearLoop, ThreadsOfAllNodesCallEveryBodyOnce) {
  Nodes nodes(200);
  for (std::size_t i = 0; i < nodes.size(); ++i) nodes[i] = static_cast<int>(i % 5) - 1;
  const FakeNuma numa(4, nodes);
  std::vector<std::atomic<int>> calls(numa.count());
  const std::function<void(std::size_t)> body = [&](std::size_t i) { ++calls[i]; };
  for (int repeat = 1; repeat <= 20; ++repeat) {
    NearLoop loop(
        numa, numa.count(), [&](std::size_t i) { return numa.memory_of(i); }, body);
    std::vector<std::thread> threads;
    threads.reserve(6);
    for (int t = 0; t < 6; ++t) {
      threads.emplace_back([&, t] {
        FakeNuma::here = t % 4;
        loop.run();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (std::size_t i = 0; i < numa.count(); ++i) ASSERT_EQ(calls[i].load(), repeat) << i;
  }
}

TEST(NearLoop, RethrowsTheErrorOfTheLowestIndexAfterAllEnded) {
  const FakeNuma numa(2, {1, 0, 1, 0});
  int calls = 0;
  const std::function<void(std::size_t)> body = [&](std::size_t i) {
    ++calls;
    throw std::runtime_error(std::to_string(i));
  };
  NearLoop loop(
      numa, numa.count(), [&](std::size_t i) { return numa.memory_of(i); }, body);
  loop.run();
  EXPECT_EQ(calls, 4);
  EXPECT_EQ(test::message_of<std::runtime_error>([&] { loop.rethrow(); }), "0");
}

TEST(Executor, RunsLoopsNearTheirMemory) {
  const FakeNuma numa(2, {1, 0, Numa::kUnknown, 1, 0, 0, 1});
  for (const ExecutorKind kind : {ExecutorKind::automatic, ExecutorKind::plain_threads}) {
    const auto alone = make_executor_on(numa, 1, kind);
    std::vector<std::size_t> order;
    alone->for_each_near(
        numa.count(), [&](std::size_t i) { return numa.memory_of(i); },
        [&](std::size_t i) { order.push_back(i); });
    EXPECT_EQ(order, (std::vector<std::size_t>{1, 4, 5, 0, 3, 6, 2})) << alone->name();

    const auto executor = make_executor_on(numa, 3, kind);
    std::vector<int> calls(numa.count(), 0);  // plain: each body runs once, before the return
    for (int repeat = 0; repeat < 50; ++repeat) {
      executor->for_each_near(
          numa.count(), [&](std::size_t i) { return numa.memory_of(i); },
          [&](std::size_t i) { ++calls[i]; });
    }
    EXPECT_EQ(calls, std::vector<int>(numa.count(), 50)) << executor->name();
    EXPECT_THROW(executor->for_each_near(
                     numa.count(), [&](std::size_t i) { return numa.memory_of(i); },
                     [](std::size_t) { throw std::runtime_error("a body"); }),
                 std::runtime_error);
  }
}

#if SLUICE_HAVE_HWLOC
// Machines that hwloc describes from a text.
TEST(MachineNuma, GivesEveryProcessorOneNode) {
  struct Machine {
    const char* text;
    int nodes;
    std::vector<int> of_cpu;  // for processors 0 and 1, which this machine has
  };
  const Machine machines[] = {{"numa:2 core:1 pu:1", 2, {0, 1}},
                              {"numa:1 core:2 pu:1", 1, {0, 0}},
                              {"pack:2 [numa] [numa] core:1 pu:1", 2, {0, 1}},
                              {"[numa] pack:2 [numa] core:1 pu:1", 2, {0, 1}},
                              {"[numa(indexes=0)] pack:2 core:1 pu:1", 1, {0, 0}}};
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  for (const Machine& machine : machines) {
    setenv("HWLOC_SYNTHETIC", machine.text, 1);
    const auto numa = read_numa();
    unsetenv("HWLOC_SYNTHETIC");
    EXPECT_EQ(numa->nodes(), machine.nodes) << machine.text;
    for (std::size_t cpu = 0; cpu < machine.of_cpu.size(); ++cpu) {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      if (sched_setaffinity(0, sizeof one, &one) != 0)
        continue;  // this process may not use the processor
      EXPECT_EQ(numa->current_node(), machine.of_cpu[cpu]) << machine.text << ", cpu " << cpu;
    }
  }
  EXPECT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}
#endif

// Queries of the system, on any machine.
TEST(MachineNuma, KnowsWhereTouchedMemoryIs) {
  const Numa& numa = machine_numa();
  ASSERT_GE(numa.nodes(), 1);
  EXPECT_GE(numa.current_node(), 0);
  EXPECT_LT(numa.current_node(), numa.nodes());

  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  struct Free {
    void operator()(char* bytes) const { std::free(bytes); }
  };
  const std::unique_ptr<char, Free> memory(static_cast<char*>(std::aligned_alloc(page, 8 * page)));
  for (std::size_t i = 0; i < 4 * page; ++i) memory.get()[i] = 1;
  const void* const addresses[] = {memory.get(), memory.get() + 3 * page + 5, nullptr};
  const Nodes nodes = numa.nodes_of(addresses);
  ASSERT_EQ(nodes.size(), 3U);
  EXPECT_EQ(nodes[2], Numa::kUnknown);
  for (const int node : {nodes[0], nodes[1]}) {
    EXPECT_GE(node, Numa::kUnknown);
    EXPECT_LT(node, numa.nodes());
  }
}

}  // namespace
}  // namespace sluice
