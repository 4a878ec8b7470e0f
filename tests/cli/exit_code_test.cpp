#include "process/exit_code.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>
#include <new>

#include "sluice/base/error.hpp"
#include "sluice/base/rank_failure.hpp"
#include "sluice/config/config_error.hpp"

namespace sluice::cli {
namespace {

template <typename Error>
Failure failure_of(Error error) {
  return classify(std::make_exception_ptr(error));
}

TEST(ExitCode, OfTheCallersMistakesIsTwo) {
  EXPECT_EQ(failure_of(InvalidArgument("x")).exit_code, 2);
  EXPECT_EQ(failure_of(config::ConfigError("f.json", {{1, 1, "key", "wrong"}})).exit_code, 2);
}

TEST(ExitCode, OfWhatDoesNotFitIsThree) {
  EXPECT_EQ(failure_of(DoesNotFit("x")).exit_code, 3);
  EXPECT_EQ(failure_of(OutOfMemory("host", 2, 1, "a tile")).exit_code, 3);
}

TEST(ExitCode, OfStorageIsFour) {
  EXPECT_EQ(failure_of(IoError(EIO, "pread", "f")).exit_code, 4);
  EXPECT_EQ(failure_of(StorageError("f", "damaged")).exit_code, 4);
}

TEST(ExitCode, OfSignalsIs128More) {
  EXPECT_EQ(failure_of(Interrupted(SIGINT)).exit_code, 130);
  EXPECT_EQ(failure_of(Interrupted(SIGTERM)).exit_code, 143);
}

TEST(ExitCode, OfAnythingElseIsOne) {
  EXPECT_EQ(failure_of(std::runtime_error("x")).exit_code, 1);
  EXPECT_EQ(failure_of(Error("x")).exit_code, 1);
  EXPECT_EQ(failure_of(std::system_error(EIO, std::generic_category())).exit_code, 1);
  EXPECT_EQ(failure_of(std::bad_alloc()).exit_code, 1);
  EXPECT_EQ(failure_of(17).exit_code, 1);
}

TEST(ExitCode, OfAnotherRanksErrorIsThatOfItsCause) {
  EXPECT_EQ(failure_of(RankFailure(FailureKind::usage, "x")).exit_code, 2);
  EXPECT_EQ(failure_of(RankFailure(FailureKind::does_not_fit, "x")).exit_code, 3);
  EXPECT_EQ(failure_of(RankFailure(FailureKind::storage, "x")).exit_code, 4);
  EXPECT_EQ(failure_of(RankFailure(FailureKind::other, "x")).exit_code, 1);
  EXPECT_TRUE(failure_of(RankFailure(FailureKind::usage, "x")).shown_by_another_rank);
}

TEST(ExitCode, MessagesOfConfigurationsBeginWithTheirPlace) {
  EXPECT_TRUE(failure_of(config::ConfigError("f", {{1, 1, "key", "wrong"}})).begins_with_place);
  EXPECT_FALSE(failure_of(InvalidArgument("x")).begins_with_place);
}

TEST(ExitCode, KeepsTheMessage) {
  EXPECT_EQ(failure_of(InvalidArgument("what and where")).message, "what and where");
  EXPECT_THAT(failure_of(std::bad_alloc()).message, ::testing::HasSubstr("memory"));
  EXPECT_THAT(failure_of(std::runtime_error("could not create a primitive")).message,
              ::testing::HasSubstr("out of memory"));
}

}  // namespace
}  // namespace sluice::cli
