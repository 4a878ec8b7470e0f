#include "terminal/console.hpp"

#include <gtest/gtest.h>

#include "memory_stream.hpp"

namespace sluice::cli {
namespace {

TerminalFacts terminal() {
  return {true, 80, true, false};
}

TEST(Console, WritesNoStatusWhereItCannotBeRewritten) {
  MemoryStream out;
  MemoryStream log;
  Console console(out.get(), log.get(), TerminalFacts{});
  console.status("busy");
  console.print("a line");
  EXPECT_EQ(out.text(), "a line\n");
}

TEST(Console, KeepsTheStatusBelowTheLinesThatStay) {
  MemoryStream out;
  MemoryStream log;
  {
    Console console(out.get(), log.get(), terminal());
    console.status("busy");
    console.print("a line");
  }
  EXPECT_EQ(out.text(), "busy\r\x1b[Ka line\nbusy\r\x1b[K");
}

TEST(Console, LogsWithoutTearingTheStatus) {
  MemoryStream out;
  MemoryStream log;
  Console console(out.get(), log.get(), terminal());
  console.status("busy");
  console.make_log_sink()(LogLevel::warn, "careful");
  console.make_log_sink()(LogLevel::error, "broken");
  console.make_log_sink()(LogLevel::info, "by the way");
  EXPECT_EQ(log.text(), "warning: careful\nerror: broken\nby the way\n");
  EXPECT_EQ(out.text(), "busy\r\x1b[Kbusy\r\x1b[Kbusy\r\x1b[Kbusy");
}

TEST(Console, LogsTextWithBracesAsItIs) {
  MemoryStream out;
  MemoryStream log;
  Console console(out.get(), log.get(), TerminalFacts{});
  console.make_log_sink()(LogLevel::info, "{} {name} 100 %s");
  EXPECT_EQ(log.text(), "{} {name} 100 %s\n");
}

}  // namespace
}  // namespace sluice::cli
