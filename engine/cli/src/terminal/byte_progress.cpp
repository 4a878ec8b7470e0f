#include "terminal/byte_progress.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "sluice/base/bytes.hpp"
#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {

constexpr double kSecondsBetweenLines = 10;
constexpr double kSecondsBetweenRedraws = 0.1;
constexpr int kShortestBar = 8;
constexpr int kLongestBar = 30;

std::string right(const std::string& text, std::size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

}  // namespace

std::string progress_bar(double share, int width, bool unicode) {
  share = std::clamp(share, 0.0, 1.0);
  if (!unicode) {
    const auto full = static_cast<std::size_t>(share * width);
    return "[" + std::string(full, '#') + std::string(static_cast<std::size_t>(width) - full, '.') +
           "]";
  }
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(share * width * 8);
  std::string out = "▕";
  for (int i = 0; i < eighths / 8; ++i) out += "█";
  out += kEighths[eighths % 8];
  const int used = eighths / 8 + (eighths % 8 != 0 ? 1 : 0);
  return out + std::string(static_cast<std::size_t>(width - used), ' ') + "▏";
}

std::string format_byte_rate(std::uint64_t bytes, double seconds) {
  if (seconds <= 0) return "? GB/s";
  return format_number("%.2f", static_cast<double>(bytes) / seconds * 1e-9) + " GB/s";
}

ByteProgress::ByteProgress(Console& console, std::string verb, std::function<double()> seconds)
    : console_(console),
      verb_(std::move(verb)),
      seconds_(std::move(seconds)),
      begin_seconds_(seconds_()),
      shown_seconds_(begin_seconds_) {}

void ByteProgress::show(std::uint64_t done_bytes, std::uint64_t total_bytes) {
  const bool rewritten = console_.terminal().is_terminal;
  const double now = seconds_();
  if (now - shown_seconds_ < (rewritten ? kSecondsBetweenRedraws : kSecondsBetweenLines)) return;
  shown_seconds_ = now;
  if (rewritten) {
    console_.status(line(done_bytes, total_bytes));
  } else {
    console_.print(line(done_bytes, total_bytes));
  }
}

std::string ByteProgress::line(std::uint64_t done_bytes, std::uint64_t total_bytes) const {
  const double elapsed = elapsed_seconds();
  const double share =
      total_bytes == 0 ? 1 : static_cast<double>(done_bytes) / static_cast<double>(total_bytes);
  const std::string done = format_bytes(done_bytes);
  const std::string total = format_bytes(total_bytes);
  const std::string rate = format_byte_rate(done_bytes, elapsed);
  const std::string left =
      done_bytes == 0 ? "" : format_duration(elapsed / share - elapsed) + " left";
  const TerminalFacts terminal = console_.terminal_now();
  if (!terminal.is_terminal) {
    return verb_ + "  " + done + " of " + total + "  " + rate + (left.empty() ? "" : "  " + left);
  }
  // Each part is padded to its longest text, so that the line does not jump. On a narrow terminal
  // the last parts are left out first.
  std::vector<std::string> parts = {
      right(done, 8) + " of " + total, right(rate, 10),
      left + std::string(11 - std::min<std::size_t>(11, left.size()), ' ')};
  const auto text = [&] {
    std::string out;
    for (const std::string& part : parts) out += "  " + part;
    return out;
  };
  const auto room = [&] {
    constexpr int kBarExtra = 2 + 2;  // the bar's ends, and the gap before the bar
    // One column less, because text in the last column wraps on some terminals.
    return terminal.columns - 1 - static_cast<int>(verb_.size() + text().size()) - kBarExtra;
  };
  while (parts.size() > 1 && room() < kShortestBar) parts.pop_back();
  if (room() < kShortestBar) return verb_ + text();
  return verb_ + "  " + progress_bar(share, std::min(room(), kLongestBar), terminal.unicode) +
         text();
}

}  // namespace sluice::cli
