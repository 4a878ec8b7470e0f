// Which ranks answer: over the memory of one process, with ranks that send no beats.

#include "exchange/peers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "exchange/exchange_communicator.hpp"
#include "rank_numbers.hpp"
#include "threads/memory_transport.hpp"

namespace sluice::zero {
namespace {

using test::message_of;
using testing::AllOf;
using testing::HasSubstr;
using Seconds = std::chrono::duration<double>;

// Long enough for a beat on a busy machine, short enough for a test.
constexpr Seconds kLimit{1.5};

TEST(Peers, ARankWithoutBeatsIsNamedWithWhatTheOthersDo) {
  auto transports = make_memory_transports(3);
  auto first = std::make_unique<Peers>(std::move(transports[0]), kLimit);
  auto second = std::make_unique<Peers>(std::move(transports[1]), kLimit);
  second->set_doing("in barrier of the start");
  std::string trouble;
  while ((trouble = first->trouble()).empty()) std::this_thread::yield();
  EXPECT_THAT(trouble, AllOf(HasSubstr("rank 2 has not answered since the start"),
                             HasSubstr("answers, and is in barrier of the start")));
  EXPECT_THAT(trouble, testing::Not(HasSubstr("rank 2 (host")));
}

TEST(Peers, RanksThatBeatAreNoTroubleHoweverLongTheyCompute) {
  auto transports = make_memory_transports(2);
  std::vector<std::unique_ptr<Peers>> peers;
  for (auto& transport : transports)
    peers.push_back(std::make_unique<Peers>(std::move(transport), kLimit));
  const auto end = std::chrono::steady_clock::now() + 2 * kLimit;
  while (std::chrono::steady_clock::now() < end) {
    ASSERT_EQ(peers[0]->trouble(), "");
    std::this_thread::yield();
  }
  // Each waits for the other's last beat.
  std::thread other([&] { peers[1].reset(); });
  peers[0].reset();
  other.join();
}

TEST(Peers, WithALimitOf0NobodyIsSilent) {
  auto transports = make_memory_transports(2);
  auto peers = std::make_unique<Peers>(std::move(transports[0]), Seconds{0});
  EXPECT_EQ(peers->trouble(), "");
  peers->stop();
}

TEST(Peers, ACallThatWaitsForASilentRankEndsWithItsNameAndSoDoLaterCalls) {
  auto transports = make_memory_transports(2);
  auto beats = make_memory_transports(2);
  const auto peers = std::make_shared<Peers>(std::move(beats[0]), kLimit);
  ExchangeCommunicator comm(std::move(transports[0]), {.executor = nullptr, .peers = peers});
  const auto first = message_of<Error>([&] { comm.barrier("the commit of step 3"); });
  EXPECT_THAT(first,
              AllOf(HasSubstr("rank 0 cannot complete barrier of the commit of step 3: rank 1 has "
                              "not answered since the start"),
                    HasSubstr("waits in barrier of the commit of step 3")));
  const auto later = message_of<Error>([&] { comm.barrier("the commit of step 4"); });
  EXPECT_THAT(later, HasSubstr("rank 1 has not answered"));
}

}  // namespace
}  // namespace sluice::zero
