#pragma once
// Progress of a command over a known number of bytes: a bar that is rewritten in place on a
// terminal, a line every ten seconds elsewhere.

#include <cstdint>
#include <functional>
#include <string>

#include "terminal/console.hpp"

namespace sluice::cli {

// A bar of `width` characters and an end on either side; `share` is clamped to 0 to 1.
std::string progress_bar(double share, int width, bool unicode);

// "1.31 GB/s" (decimal); "? GB/s" for 0 seconds.
std::string format_byte_rate(std::uint64_t bytes, double seconds);

// Confined to thread: the working thread.
class ByteProgress {
 public:
  // `verb` begins every line: "checking". `seconds` is a monotonic clock; the elapsed time counts
  // from the construction.
  ByteProgress(Console& console, std::string verb, std::function<double()> seconds);
  ~ByteProgress() { console_.status(""); }
  ByteProgress(const ByteProgress&) = delete;
  ByteProgress& operator=(const ByteProgress&) = delete;

  void show(std::uint64_t done_bytes, std::uint64_t total_bytes);
  double elapsed_seconds() const { return seconds_() - begin_seconds_; }

 private:
  std::string line(std::uint64_t done_bytes, std::uint64_t total_bytes) const;

  Console& console_;
  const std::string verb_;
  const std::function<double()> seconds_;
  const double begin_seconds_;
  double shown_seconds_;
};

}  // namespace sluice::cli
