#include "launch/child/rank_output.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "cli/run_program.hpp"
#include "sluice/base/error.hpp"
#include "temp_dir.hpp"

namespace sluice::cli {
namespace {

using ::testing::ElementsAre;

class Output : public ::testing::Test {
 protected:
  RankOutput make(const std::string& log = "") {
    return {"[rank 3] ", log, [this](Stream stream, std::string_view lines) {
              written_.push_back((stream == Stream::out ? "out " : "err ") + std::string(lines));
            }};
  }
  std::vector<std::string> written_;
};

TEST_F(Output, IsWrittenInWholeLines) {
  RankOutput output = make();
  output.take(Stream::out, "one\ntw");
  output.take(Stream::err, "wrong\n");
  output.take(Stream::out, "o\nthree");
  EXPECT_THAT(written_,
              ElementsAre("out [rank 3] one\n", "err [rank 3] wrong\n", "out [rank 3] two\n"));
  output.finish();
  EXPECT_EQ(written_.back(), "out [rank 3] three\n");
  EXPECT_THAT(output.last_lines(), ElementsAre("one", "wrong", "two", "three"));
}

// A FIFO without a reader would hold its writer for ever.
TEST_F(Output, RefusesALogThatIsAPipe) {
  const test::TempDir directory;
  const std::string pipe = directory.file("rank-3.log");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(make(pipe), StorageError);
  make("/dev/null").take(Stream::out, "one\n");
  EXPECT_THAT(written_, ElementsAre("out [rank 3] one\n"));
}

TEST_F(Output, EndsALineAtACarriageReturnToo) {
  RankOutput output = make();
  output.take(Stream::err, "10 %\r20 %\r");
  output.take(Stream::err, "\ndone\r\n");
  EXPECT_THAT(written_,
              ElementsAre("err [rank 3] 10 %\n", "err [rank 3] 20 %\n", "err [rank 3] done\n"));
}

TEST_F(Output, OfALineWithoutEndIsCutAndBounded) {
  RankOutput output = make();
  for (int i = 0; i < 3; ++i) output.take(Stream::out, std::string(48U << 10U, 'x'));
  ASSERT_EQ(written_.size(), 2U);
  EXPECT_EQ(written_[0].size(), std::string("out [rank 3] \n").size() + (64U << 10U));
}

TEST_F(Output, KeepsTheLastLines) {
  RankOutput output = make();
  for (int i = 0; i < 100; ++i) output.take(Stream::out, std::to_string(i) + "\n");
  ASSERT_EQ(output.last_lines().size(), 20U);
  EXPECT_EQ(output.last_lines().front(), "80");
}

TEST_F(Output, IsAppendedToTheLogUnchanged) {
  const test::TempDir directory;
  test::write_file(directory.file("log"), "before\n");
  RankOutput output = make(directory.file("log"));
  output.take(Stream::out, "10 %\r");
  output.take(Stream::err, "end");
  output.finish();
  EXPECT_EQ(test::file_text(directory.file("log")), "before\n10 %\rend");
}

}  // namespace
}  // namespace sluice::cli
