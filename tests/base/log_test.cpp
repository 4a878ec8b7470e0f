#include "sluice/base/log.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>
#include <vector>

#include "captured_log.hpp"

namespace sluice {
namespace {

TEST(Log, PassesOnWhatIsAtLeastAsSevereAsAskedFor) {
  const test::CapturedLog captured(LogLevel::info);
  log(LogLevel::error, "first");
  log(LogLevel::debug, "unseen");
  log(LogLevel::info, "second");
  const auto messages = captured.messages();
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_EQ(messages[0].text, "first");
  EXPECT_EQ(messages[0].level, LogLevel::error);
  EXPECT_EQ(messages[1].text, "second");
}

TEST(Log, WithoutASinkWritesWarningsToStandardError) {
  ::testing::internal::CaptureStderr();
  log(LogLevel::warn, "seen");
  log(LogLevel::info, "unseen");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "sluice: seen\n");
}

TEST(Log, SurvivesASinkThatThrows) {
  set_log_sink([](LogLevel, std::string_view) { throw std::runtime_error("no"); });
  ::testing::internal::CaptureStderr();
  log(LogLevel::error, "lost");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "sluice: the log sink threw\n");
  set_log_sink(nullptr);
}

TEST(Log, CallsTheSinkFromOneThreadAtATime) {
  int calls = 0;  // not atomic: the log's lock is what makes this right
  set_log_sink([&](LogLevel, std::string_view) { ++calls; });
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int repeat = 0; repeat < 250; ++repeat) log(LogLevel::info, "tick");
    });
  }
  for (std::thread& thread : threads) thread.join();
  set_log_sink(nullptr);
  EXPECT_EQ(calls, 1000);
}

}  // namespace
}  // namespace sluice
