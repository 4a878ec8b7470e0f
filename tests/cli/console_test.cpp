#include "terminal/console.hpp"

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>

#include "memory_stream.hpp"

namespace sluice::cli {
namespace {

TerminalFacts terminal() {
  return {true, 80, true};
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

// A terminal of its own, whose width may change.
class Terminal {
 public:
  Terminal() {
    int shown = -1;
    if (::openpty(&reads_, &shown, nullptr, nullptr, nullptr) == 0) stream_ = ::fdopen(shown, "w");
  }
  ~Terminal() {
    if (stream_ != nullptr) std::fclose(stream_);
    ::close(reads_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  std::FILE* get() { return stream_; }
  void resize(unsigned short columns) const {
    const winsize size = {24, columns, 0, 0};
    ::ioctl(reads_, TIOCSWINSZ, &size);
  }
  // All that was written since the last call.
  std::string text() const {
    std::array<char, 4096> bytes{};
    const ssize_t got = ::read(reads_, bytes.data(), bytes.size());
    return {bytes.data(), got > 0 ? static_cast<std::size_t>(got) : 0};
  }

 private:
  int reads_ = -1;
  std::FILE* stream_ = nullptr;
};

TEST(Console, CutsTheStatusToTheWidthThatTheTerminalHasNow) {
  Terminal screen;
  ASSERT_NE(screen.get(), nullptr);
  MemoryStream log;
  screen.resize(60);
  Console console(screen.get(), log.get(), terminal());
  const std::string status = "▕" + std::string(49, '-');
  console.status(status);
  EXPECT_EQ(screen.text(), status);
  EXPECT_EQ(console.terminal_now().columns, 60);
  screen.resize(20);  // less than text is wrapped to
  console.status(status);
  EXPECT_EQ(screen.text(), "\r\x1b[K▕" + std::string(18, '-'));
  EXPECT_EQ(console.terminal_now().columns, 20);
  screen.resize(60);
  console.status(status);
  EXPECT_EQ(screen.text(), "\r\x1b[K" + status);
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
