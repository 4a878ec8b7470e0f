// The operations of ExchangeCommunicator that sum.

#include <algorithm>
#include <array>

#include "exchange/exchange_communicator.hpp"
#include "exchange/rank_sum.hpp"

namespace sluice::zero {

void ExchangeCommunicator::reduce_scatter(Begun& begun) {
  const std::span<std::byte> full = begun.call.output;
  if (!messages_.lends()) return sum_received(full, equal_ranges(full.size()), begun.call.element);
  sum_lent(shard_of(full, rank_), begun.call.element);
  messages_.finish(begun.offered);
}

// Each rank sums its range over all ranks.
void ExchangeCommunicator::sum_ranges(std::span<std::byte> full, const Ranges& ranges,
                                      Element element) {
  if (!messages_.lends()) return sum_received(full, ranges, element);
  RankMessages::Batch sends;
  for (const int other : others_) {
    const Range theirs = ranges[static_cast<std::size_t>(other)];
    messages_.begin_send(sends, other, full.subspan(theirs.begin, theirs.size_bytes));
  }
  const Range own = ranges[static_cast<std::size_t>(rank_)];
  sum_lent(full.subspan(own.begin, own.size_bytes), element);
  messages_.finish(sends);
}

// Reads the others' parts where they have them.
void ExchangeCommunicator::sum_lent(std::span<std::byte> own, Element element) {
  if (own.empty()) return;
  std::vector<const std::byte*> parts;
  parts.reserve(static_cast<std::size_t>(world_size_));
  const RankMessages::Lent lent = messages_.borrow(others_, own.size());
  for (const auto& each : lent) parts.push_back(each->bytes().data());
  parts.insert(parts.begin() + rank_, own.data());
  sum_in_rank_order(parts, own.data(), own.size() / size_of(element), element, options_.executor);
}

// While one block is summed, the next one arrives.
void ExchangeCommunicator::sum_received(std::span<std::byte> full, const Ranges& ranges,
                                        Element element) {
  std::size_t longest = 0;
  for (const Range& range : ranges) longest = std::max(longest, range.size_bytes);
  const std::size_t blocks = (longest + options_.block_bytes - 1) / options_.block_bytes;
  const Range own = ranges[static_cast<std::size_t>(rank_)];
  if (own.size_bytes > 0) workspace_.resize(2 * others_.size() * options_.block_bytes);
  std::array<RankMessages::Batch, 2> batches;
  if (blocks > 0) begin_block(batches[0], full, ranges, 0);
  for (std::size_t block = 0; block < blocks; ++block) {
    if (block + 1 < blocks) begin_block(batches[(block + 1) % 2], full, ranges, block + 1);
    messages_.finish(batches[block % 2]);
    const std::size_t offset = block * options_.block_bytes;
    if (offset >= own.size_bytes) continue;
    const std::size_t size = std::min(options_.block_bytes, own.size_bytes - offset);
    sum_block(full.subspan(own.begin + offset, size), block, element);
  }
}

void ExchangeCommunicator::begin_block(RankMessages::Batch& batch, std::span<std::byte> full,
                                       const Ranges& ranges, std::size_t block) {
  const std::size_t offset = block * options_.block_bytes;
  const auto size_in = [&](int rank) {
    const std::size_t size = ranges[static_cast<std::size_t>(rank)].size_bytes;
    return offset < size ? std::min(options_.block_bytes, size - offset) : 0;
  };
  const auto send = [&] {
    for (const int other : others_) {
      const std::size_t begin = ranges[static_cast<std::size_t>(other)].begin + offset;
      if (const std::size_t size = size_in(other); size > 0)
        messages_.begin_send(batch, other, full.subspan(begin, size));
    }
  };
  const auto receive = [&] {
    const std::size_t size = size_in(rank_);
    if (size == 0) return;
    for (const int other : others_)
      messages_.begin_receive(batch, other, part_of(other, block).first(size));
  };
  begin_both(send, receive);
}

void ExchangeCommunicator::sum_block(std::span<std::byte> own, std::size_t block, Element element) {
  std::vector<const std::byte*> parts;
  parts.reserve(static_cast<std::size_t>(world_size_));
  for (int rank = 0; rank < world_size_; ++rank)
    parts.push_back(rank == rank_ ? own.data() : part_of(rank, block).data());
  sum_in_rank_order(parts, own.data(), own.size() / size_of(element), element, options_.executor);
}

std::span<std::byte> ExchangeCommunicator::part_of(int other, std::size_t block) {
  const auto slot = static_cast<std::size_t>(other < rank_ ? other : other - 1);
  return std::span(workspace_)
      .subspan((block % 2 * others_.size() + slot) * options_.block_bytes, options_.block_bytes);
}

}  // namespace sluice::zero
