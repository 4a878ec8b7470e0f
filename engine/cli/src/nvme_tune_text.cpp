// What `sluice nvme tune` prints when it has measured.

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "nvme_tune.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/text.hpp"
#include "text_format.hpp"

namespace sluice::cli {

namespace {

std::string times(int count) {
  if (count == 1) return "once";
  return count == 2 ? "twice" : std::to_string(count) + " times";
}

// The mark is behind the number, and room for it in the rest of its column, so that digits line up.
std::string pattern_table(const SurfaceTable& table, const SurfacePattern& pattern,
                          const nvme::TuneSetting& chosen) {
  std::vector<std::vector<std::string>> rows = {{std::string(pattern.name) + " GB/s"}};
  const auto room = [&](unsigned depth) { return depth == chosen.depth ? " " : ""; };
  for (const unsigned depth : table.depths)
    rows.front().push_back("depth " + std::to_string(depth) + room(depth));
  for (std::size_t b = 0; b < table.blocks.size(); ++b) {
    rows.push_back({format_bytes(table.blocks[b])});
    for (std::size_t d = 0; d < table.depths.size(); ++d) {
      const nvme::TunePoint* point = table.points[b][d];
      const std::string rate =
          point == nullptr ? "-" : format_gigabytes(point->rates.*pattern.rate);
      const bool is_chosen = point != nullptr && point->setting == chosen;
      rows.back().push_back(rate + (is_chosen ? "*" : room(table.depths[d])));
    }
  }
  return format_table(rows) + "\n";
}

// How much of the surface there was time for.
std::string coverage_text(const TuneOutcome& outcome) {
  const auto measured = static_cast<std::size_t>(std::ranges::count_if(
      outcome.surface, [](const nvme::TunePoint& point) { return point.rounds > 0; }));
  std::string text = "measured " + std::to_string(measured) + " of " +
                     std::to_string(outcome.surface.size()) + " settings, the best ones " +
                     times(outcome.chosen.rounds);
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
      const bool measured = found != surface.end() && found->rounds > 0;
      table.points.back().push_back(measured ? &*found : nullptr);
    }
  }
  return table;
}

const nvme::TunePoint* default_point(const TuneOutcome& outcome) {
  const nvme::IoEngineOptions defaults;
  const nvme::TuneSetting setting{defaults.block_bytes, defaults.depth};
  const auto found = std::ranges::find(outcome.surface, setting, &nvme::TunePoint::setting);
  return found == outcome.surface.end() || found->rounds == 0 ? nullptr : &*found;
}

std::string setting_text(const nvme::TuneSetting& setting) {
  return "blocks of " + format_bytes(setting.block_bytes) + ", depth " +
         std::to_string(setting.depth);
}

std::string rates_text(const nvme::TuneRates& rates) {
  return "read " + format_gigabytes(rates.read) + ", write " + format_gigabytes(rates.write) +
         ", mixed " + format_gigabytes(rates.mixed) + " GB/s";
}

std::string polling_text(const TuneOutcome& outcome) {
  if (outcome.polled_rate <= 0) return "kernel polling for requests: only io_uring has it";
  return "swap, with the kernel polling for requests (it takes a core): " +
         format_gigabytes(outcome.polled_rate) +
         ", without: " + format_gigabytes(outcome.unpolled_rate) +
         " GB/s: " + (outcome.submit_polling ? "on" : "off");
}

std::string tune_text(const TuneOutcome& outcome) {
  const SurfaceTable table = surface_table(outcome.surface);
  std::string text;
  for (const SurfacePattern& pattern : kSurfacePatterns)
    text += pattern_table(table, pattern, outcome.chosen.setting);
  text += coverage_text(outcome) + "\nswap, by reads in a row while a write waits: ";
  for (const SwapRate& rate : outcome.swap) {
    text += (&rate == &outcome.swap.front() ? "" : ", ") + std::to_string(rate.reads_per_write) +
            ": " + format_gigabytes(rate.bytes_per_second);
  }
  text += " GB/s\n" + polling_text(outcome) + "\n";
  if (const nvme::TunePoint* usual = default_point(outcome)) {
    text += "default: " + setting_text(usual->setting) + ": " + rates_text(usual->rates) + "\n";
  }
  return text + "best: " + setting_text(outcome.chosen.setting) + ", " +
         std::to_string(outcome.reads_per_write) + " reads in a row, " + outcome.backend + ": " +
         rates_text(outcome.chosen.rates) + "\n";
}

}  // namespace sluice::cli
