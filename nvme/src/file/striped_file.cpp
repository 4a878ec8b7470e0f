#include "sluice/nvme/striped_file.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "sluice/base/error.hpp"

namespace sluice::nvme {

namespace {

constexpr unsigned kMostWeight = 64;
constexpr std::uint64_t kMostChunkBytes = 1U << 30U;
constexpr unsigned kMostInTurn = 16;
constexpr const char* kMovedAway = "a striped file that was moved to another has no parts";

void check_part(const StripeLayout& layout, std::size_t part) {
  SLUICE_CHECK(part < layout.parts(), "part " + std::to_string(part) + " of a stripe of " +
                                          std::to_string(layout.parts()) + " parts");
}

// The largest ratio of a drive's share under `weights` to its share of `rates`. The others wait for
// the drive with the largest ratio.
double overload(const std::vector<unsigned>& weights, std::span<const double> rates) {
  const double all_weights = std::accumulate(weights.begin(), weights.end(), 0U);
  const double all_rates = std::accumulate(rates.begin(), rates.end(), 0.0);
  double worst = 0;
  for (std::size_t i = 0; i < rates.size(); ++i)
    worst = std::max(worst, (weights[i] / all_weights) / (rates[i] / all_rates));
  return worst;
}

std::vector<unsigned> weights_in_turn_of(unsigned turn, std::span<const double> rates) {
  const double sum = std::accumulate(rates.begin(), rates.end(), 0.0);
  std::vector<unsigned> weights;
  for (const double rate : rates) {
    const long rounded = std::lround(turn * rate / sum);
    weights.push_back(static_cast<unsigned>(std::clamp<long>(rounded, 1, kMostWeight)));
  }
  return weights;
}

}  // namespace

StripeLayout::StripeLayout(std::vector<unsigned> weights, std::uint64_t chunk_bytes)
    : weights_(std::move(weights)), chunk_bytes_(chunk_bytes) {
  SLUICE_CHECK(!weights_.empty(), "a stripe over no drive");
  SLUICE_CHECK(chunk_bytes_ > 0 && chunk_bytes_ <= kMostChunkBytes && chunk_bytes_ % 4096 == 0,
               "stripe chunks of " + std::to_string(chunk_bytes_) +
                   " bytes: expected a multiple of 4096 up to 1 GiB");
  for (const unsigned weight : weights_) {
    SLUICE_CHECK(weight >= 1 && weight <= kMostWeight,
                 "a stripe weight of " + std::to_string(weight) + ": expected 1 to 64");
  }
  // Smooth weighted round robin spreads every drive's chunks evenly over the turn.
  const auto turn = std::accumulate(weights_.begin(), weights_.end(), std::int64_t{0});
  std::vector<std::int64_t> credit(weights_.size(), 0);
  std::vector<unsigned> given(weights_.size(), 0);
  for (std::int64_t position = 0; position < turn; ++position) {
    for (std::size_t part = 0; part < credit.size(); ++part) credit[part] += weights_[part];
    const auto richest = std::max_element(credit.begin(), credit.end());
    *richest -= turn;
    const auto part = static_cast<std::size_t>(richest - credit.begin());
    part_at_.push_back(part);
    rank_at_.push_back(given[part]++);
  }
}

StripeLayout::Piece StripeLayout::first_piece(std::uint64_t offset_bytes,
                                              std::uint64_t size_bytes) const {
  if (parts() == 1) return {0, offset_bytes, size_bytes};
  SLUICE_CHECK(parts() > 0, kMovedAway);
  const std::uint64_t chunk = offset_bytes / chunk_bytes_;
  const std::uint64_t in_chunk = offset_bytes % chunk_bytes_;
  const std::uint64_t turn = chunk / part_at_.size();
  const std::size_t position = chunk % part_at_.size();
  const std::size_t part = part_at_[position];
  const std::uint64_t part_chunk = turn * weights_[part] + rank_at_[position];
  return {part, part_chunk * chunk_bytes_ + in_chunk,
          std::min(size_bytes, chunk_bytes_ - in_chunk)};
}

std::uint64_t StripeLayout::part_bytes(std::size_t part, std::uint64_t size_bytes) const {
  check_part(*this, part);
  if (parts() == 1) return size_bytes;
  const std::uint64_t turn_bytes = part_at_.size() * chunk_bytes_;
  std::uint64_t sum = size_bytes / turn_bytes * weights_[part] * chunk_bytes_;
  std::uint64_t rest = size_bytes % turn_bytes;
  for (std::size_t position = 0; rest > 0; ++position) {
    const std::uint64_t here = std::min(rest, chunk_bytes_);
    if (part_at_[position] == part) sum += here;
    rest -= here;
  }
  return sum;
}

std::uint64_t StripeLayout::covered_bytes(std::size_t part, std::uint64_t part_size_bytes) const {
  check_part(*this, part);
  if (parts() == 1) return part_size_bytes;
  const std::uint64_t part_chunk = part_size_bytes / chunk_bytes_;
  const std::uint64_t turn = part_chunk / weights_[part];
  std::size_t position = 0;
  while (part_at_[position] != part || rank_at_[position] != part_chunk % weights_[part])
    ++position;
  // A part may be so long that the run has no limit.
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  if (turn >= kMost / chunk_bytes_ / part_at_.size()) return kMost;
  return (turn * part_at_.size() + position) * chunk_bytes_ + part_size_bytes % chunk_bytes_;
}

std::vector<unsigned> stripe_weights(std::span<const double> rates) {
  SLUICE_CHECK(!rates.empty(), "stripe weights of no drive");
  for (const double rate : rates)
    SLUICE_CHECK(std::isfinite(rate) && rate > 0, "a drive with a rate of " + std::to_string(rate));
  const auto [least, most] = std::minmax_element(rates.begin(), rates.end());
  if (*most < 1.1 * *least) return std::vector<unsigned>(rates.size(), 1);
  // Takes the shortest turn that loads no drive by more than a sixteenth above its share, else the
  // best turn.
  std::vector<unsigned> best;
  double best_overload = std::numeric_limits<double>::infinity();
  for (unsigned turn = static_cast<unsigned>(rates.size());
       turn <= std::max<unsigned>(kMostInTurn, 2 * static_cast<unsigned>(rates.size())); ++turn) {
    std::vector<unsigned> weights = weights_in_turn_of(turn, rates);
    const double load = overload(weights, rates);
    if (load < best_overload) {
      best_overload = load;
      best = std::move(weights);
    }
    if (best_overload <= 1.0 + 1.0 / 16) break;
  }
  return best;
}

StripedFile::StripedFile(SwapFile file) {
  parts_.push_back(std::move(file));
}

StripedFile::StripedFile(std::vector<SwapFile> parts, StripeLayout layout)
    : parts_(std::move(parts)), layout_(std::move(layout)) {
  SLUICE_CHECK(
      parts_.size() == layout_.parts(),
      std::to_string(parts_.size()) + " files for a stripe of " + std::to_string(layout_.parts()));
}

void StripedFile::check_parts() const {
  SLUICE_CHECK(!parts_.empty(), kMovedAway);
}

const std::string& StripedFile::path() const {
  check_parts();
  return parts_.front().path();
}

std::string StripedFile::why_buffered() const {
  check_parts();
  for (const SwapFile& part : parts_) {
    if (part.why_buffered().empty()) continue;
    return (parts_.size() > 1 ? part.path() + ": " : "") + part.why_buffered();
  }
  return "";
}

std::uint32_t StripedFile::offset_alignment() const {
  check_parts();
  std::uint32_t alignment = 1;
  for (const SwapFile& part : parts_) alignment = std::max(alignment, part.offset_alignment());
  return alignment;
}

std::uint64_t StripedFile::size_bytes() const {
  check_parts();
  std::uint64_t size = std::numeric_limits<std::uint64_t>::max();
  for (std::size_t i = 0; i < parts_.size(); ++i)
    size = std::min(size, layout_.covered_bytes(i, parts_[i].size_bytes()));
  return size;
}

void StripedFile::allocate(std::uint64_t size_bytes) {
  check_parts();
  for (std::size_t i = 0; i < parts_.size(); ++i)
    parts_[i].allocate(layout_.part_bytes(i, size_bytes));
}

void StripedFile::sync_data() const {
  check_parts();
  for (const SwapFile& part : parts_) part.sync_data();
}

}  // namespace sluice::nvme
