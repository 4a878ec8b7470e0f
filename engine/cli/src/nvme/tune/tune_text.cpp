#include "nvme/tune/tune_text.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "sluice/base/bytes.hpp"
#include "sluice/base/text.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/nvme/paired_ratios.hpp"
#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {

constexpr double kNoisy = 0.1;  // an interval this wide hides what tuning gains

std::string times(int count) {
  if (count == 1) return "once";
  return count == 2 ? "twice" : std::to_string(count) + " times";
}

// The mark follows the chosen number. Other cells of that column get a space instead, so that
// digits line up.
std::string pattern_table(const SurfaceTable& table, const SurfacePattern& pattern,
                          const nvme::TuneSetting& chosen) {
  std::vector<std::vector<std::string>> rows = {{std::string(pattern.name) + " GB/s"}};
  const auto room = [&](unsigned depth) { return depth == chosen.depth ? " " : ""; };
  for (const unsigned depth : table.depths) {
    const char* heading = depth == table.depths.front() ? "depth " : "";
    rows.front().push_back(heading + std::to_string(depth) + room(depth));
  }
  for (std::size_t b = 0; b < table.blocks.size(); ++b) {
    rows.push_back({format_bytes(table.blocks[b])});
    for (std::size_t d = 0; d < table.depths.size(); ++d) {
      const nvme::TunePoint* point = table.points[b][d];
      std::string rate;
      if (point != nullptr)
        rate = point->rounds == 0 ? "-" : format_gigabytes(point->rates.*pattern.rate);
      const bool is_chosen = point != nullptr && point->setting == chosen;
      // An empty cell keeps the column one of numbers.
      rows.back().push_back(rate.empty() ? "" : rate + (is_chosen ? "*" : room(table.depths[d])));
    }
  }
  return format_table(rows) + "\n";
}

// The part of the surface that was measured in the given time.
std::string coverage_text(const TuneOutcome& outcome) {
  const auto measured = static_cast<std::size_t>(std::ranges::count_if(
      outcome.surface, [](const nvme::TunePoint& point) { return point.rounds > 0; }));
  std::string text = "measured " + std::to_string(measured) + " of " +
                     std::to_string(outcome.surface.size()) + " settings, the best ones " +
                     times(outcome.choice.point.rounds);
  if (!outcome.finished) text += "; more seconds measure more";
  return text + " (*: chosen, -: not measured)";
}

}  // namespace

SurfaceTable surface_table(const std::vector<nvme::TunePoint>& surface) {
  std::set<std::uint32_t> blocks;
  std::set<unsigned> depths;
  for (const nvme::TunePoint& point : surface) {
    blocks.insert(point.setting.block_bytes);
    depths.insert(point.setting.depth);
  }
  SurfaceTable table{{blocks.begin(), blocks.end()}, {depths.begin(), depths.end()}, {}};
  for (const std::uint32_t block : table.blocks) {
    table.points.emplace_back();
    for (const unsigned depth : table.depths) {
      const auto found =
          std::ranges::find(surface, nvme::TuneSetting{block, depth}, &nvme::TunePoint::setting);
      table.points.back().push_back(found == surface.end() ? nullptr : &*found);
    }
  }
  return table;
}

nvme::TuneSetting default_setting() {
  const nvme::IoEngineOptions defaults;
  return {defaults.block_bytes, defaults.depth};
}

std::string setting_text(const nvme::TuneSetting& setting) {
  return "blocks of " + format_bytes(setting.block_bytes) + ", depth " +
         std::to_string(setting.depth);
}

std::string rates_text(const nvme::TuneRates& rates) {
  return "read " + format_gigabytes(rates.read) + ", write " + format_gigabytes(rates.write) +
         ", mixed " + format_gigabytes(rates.mixed) + " GB/s";
}

std::string gain_text(const nvme::RatioSummary& gain) {
  const auto percent = [](double ratio) { return format_number("%.1f", 100 * (ratio - 1)) + " %"; };
  return "gains " + percent(gain.median) + " (90 % interval " + percent(gain.interval_begin) +
         " to " + percent(gain.interval_end) + ")";
}

std::string gain_text(const TuneOutcome& outcome) {
  const auto has_default = std::ranges::find(outcome.surface, default_setting(),
                                             &nvme::TunePoint::setting) != outcome.surface.end();
  if (!has_default) return "";
  const nvme::TuneChoice& choice = outcome.choice;
  const std::string usual = "the default, " + setting_text(default_setting());
  if (choice.gain.median <= 0) return usual + ", stays: no time to compare others with it";
  const std::string gain = gain_text(choice.gain) + " in " +
                           std::to_string(choice.point.last_means.size()) + " rounds side by side";
  if (choice.point.setting != default_setting()) return "over " + usual + ", it " + gain;
  const bool noisy = choice.gain.interval_end - choice.gain.interval_begin > kNoisy;
  return usual + ", stays: the best other setting, " + setting_text(choice.compared) + ", " + gain +
         ", not clearly more than 2 %" +
         (noisy ? "; the drive's speed moves: an idle machine or more --seconds tell more" : "");
}

std::string polling_text(const TuneOutcome& outcome) {
  if (outcome.polled.empty()) return "kernel polling for requests: only io_uring has it";
  const nvme::RatioSummary ratio = nvme::summarize_pairs(outcome.polled, outcome.unpolled);
  return "swap with the kernel polling for requests (it takes a core): " +
         format_gigabytes(nvme::geometric_mean(outcome.polled)) +
         " GB/s, without: " + format_gigabytes(nvme::geometric_mean(outcome.unpolled)) +
         " GB/s; ratio " + format_number("%.2f", ratio.median) + " (90 % interval " +
         format_number("%.2f", ratio.interval_begin) + " to " +
         format_number("%.2f", ratio.interval_end) +
         "): " + (outcome.submit_polling ? "on" : "off");
}

std::string tune_text(const TuneOutcome& outcome) {
  const SurfaceTable table = surface_table(outcome.surface);
  std::string text;
  for (const SurfacePattern& pattern : kSurfacePatterns)
    text += pattern_table(table, pattern, outcome.choice.point.setting);
  text += coverage_text(outcome) + "\nswap, by reads in a row while a write waits: ";
  for (const SwapRates& order : outcome.swap) {
    text += (&order == &outcome.swap.front() ? "" : ", ") + std::to_string(order.reads_per_write) +
            ": " + format_gigabytes(nvme::geometric_mean(order.rounds));
  }
  text += " GB/s\n" + polling_text(outcome) +
          "\nchosen: " + setting_text(outcome.choice.point.setting) + ", " +
          std::to_string(outcome.reads_per_write) + " reads in a row, " + outcome.backend + ": " +
          rates_text(outcome.choice.point.rates) + "\n";
  const std::string gain = gain_text(outcome);
  return gain.empty() ? text : text + gain + "\n";
}

}  // namespace sluice::cli
