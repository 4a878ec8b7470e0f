#include "terminal/text_format.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace sluice::cli {
namespace {

TEST(FormatDuration, TakesTheTwoLargestUnits) {
  EXPECT_EQ(format_duration(0.4), "0s");
  EXPECT_EQ(format_duration(42), "42s");
  EXPECT_EQ(format_duration(59.6), "1m00s");
  EXPECT_EQ(format_duration(462), "7m42s");
  EXPECT_EQ(format_duration(3 * 3600 + 5 * 60 + 59), "3h05m");
  EXPECT_EQ(format_duration(2 * 86400 + 4 * 3600), "2d04h");
}

TEST(FormatDuration, IsAQuestionMarkWhenNotKnown) {
  EXPECT_EQ(format_duration(-1), "?");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::quiet_NaN()), "?");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "?");
}

TEST(FormatRate, KeepsADecimalOnlyWhenSlow) {
  EXPECT_EQ(format_rate(12.34, "tok/s"), "12.3 tok/s");
  EXPECT_EQ(format_rate(1043.4, "tok/s"), "1,043 tok/s");
  EXPECT_EQ(format_rate(std::numeric_limits<double>::infinity(), "tok/s"), "? tok/s");
}

TEST(ShellQuote, LeavesPlainArgumentsAlone) {
  EXPECT_EQ(shell_quote("--config=a/b_c.json"), "--config=a/b_c.json");
}

TEST(ShellQuote, ProtectsWhatAShellWouldRead) {
  EXPECT_EQ(shell_quote(""), "''");
  EXPECT_EQ(shell_quote("a b"), "'a b'");
  EXPECT_EQ(shell_quote("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_quote("$(rm *)"), "'$(rm *)'");
  EXPECT_EQ(shell_quote("~/x"), "'~/x'");
  EXPECT_EQ(shell_line({"sluice", "a b"}), "sluice 'a b'");
}

TEST(WrapSentences, BreaksLongLinesAtSpacesAndKeepsTables) {
  EXPECT_EQ(wrap_sentences("chosen: activations of one micro-batch\nshort\n", 24),
            "chosen: activations of\n  one micro-batch\nshort\n");
  const std::string table = "weights            977 MiB         -     -  bf16\n";
  EXPECT_EQ(wrap_sentences(table, 24), table);
  EXPECT_EQ(wrap_sentences("states   -  one in \xC3\xA9 slot on disk\n", 24),
            "states   -  one in \xC3\xA9\n            slot on disk\n");
  EXPECT_EQ(wrap_sentences("    honoured, a number\n", 20), "    honoured, a\n    number\n");
  const std::string to_copy = "  sluice train --config ds.json --resume\n";
  EXPECT_EQ(wrap_sentences(to_copy, 24), to_copy);
  EXPECT_EQ(wrap_sentences("", 24), "");
}

TEST(ValidUtf8, KeepsValidSequences) {
  const std::string text = "a\xC3\xA9\xE2\xA0\x80\xF0\x9F\x98\x80";
  EXPECT_EQ(valid_utf8(text), text);
}

TEST(ValidUtf8, ReplacesEachByteThatIsNotPartOfOne) {
  EXPECT_EQ(valid_utf8("a\xC3"), "a\xEF\xBF\xBD");
  EXPECT_EQ(valid_utf8("\x80z"), "\xEF\xBF\xBDz");
  EXPECT_EQ(valid_utf8("\xC0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD") << "overlong";
  EXPECT_EQ(valid_utf8("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD") << "a surrogate";
}

TEST(Printable, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(printable("a\x1b[31mb\x07\x7f"), "a\\x1b[31mb\\x07\\x7f");
  EXPECT_EQ(printable("\xC2\x9B"
                      "1m"),
            "\\x9b1m");
  EXPECT_EQ(printable("one\ntwo\tthree \xC3\xA9\n"), "one\ntwo\tthree \xC3\xA9\n");
  EXPECT_EQ(printable("a\xC3"), "a\xEF\xBF\xBD");
}

TEST(Printable, CutsLongLinesAtACharacter) {
  const std::string long_line(3000, 'x');
  EXPECT_EQ(printable("a\n" + long_line + "\nb"),
            "a\n" + long_line.substr(0, 2000) + "... (1,000 more bytes)\nb");
  std::string accents;
  for (int i = 0; i < 1500; ++i) accents += "\xC3\xA9";
  EXPECT_EQ(printable(accents), accents.substr(0, 2000) + "... (1,000 more bytes)");
}

}  // namespace
}  // namespace sluice::cli
