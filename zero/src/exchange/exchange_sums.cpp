// The operations of ExchangeCommunicator that sum.

#include <algorithm>
#include <array>

#include "exchange/exchange_communicator.hpp"
#include "exchange/rank_sum.hpp"

namespace sluice::zero {

// Each rank sums its part over all ranks.
void ExchangeCommunicator::sum(Begun& begun) {
  if (!messages_.lends()) return sum_received(begun.call);
  sum_offered(part_summed_by(rank_, begun.call), begun.call.element);
  messages_.finish(begun.announced.offers);
}

// Reads the others' parts where they have them.
void ExchangeCommunicator::sum_offered(std::span<std::byte> own, Element element) {
  if (own.empty()) return;
  std::vector<const std::byte*> parts;
  parts.reserve(static_cast<std::size_t>(world_size_));
  const RankMessages::Offers offers = messages_.open_offers(others_, own.size());
  for (const auto& each : offers) parts.push_back(each->bytes().data());
  parts.insert(parts.begin() + rank_, own.data());
  sum_in_rank_order(parts, own.data(), own.size() / size_of(element), element, options_.executor);
}

// While one block is summed, the next one arrives.
void ExchangeCommunicator::sum_received(const HostCall& call) {
  std::size_t longest = 0;
  for (int rank = 0; rank < world_size_; ++rank)
    longest = std::max(longest, summed_by(rank, call).size_bytes);
  const std::size_t blocks = (longest + options_.block_bytes - 1) / options_.block_bytes;
  const std::span<std::byte> own = part_summed_by(rank_, call);
  if (!own.empty()) workspace_.resize(2 * others_.size() * options_.block_bytes);
  std::array<RankMessages::Batch, 2> batches;
  if (blocks > 0) begin_block(batches[0], call, 0);
  for (std::size_t block = 0; block < blocks; ++block) {
    if (block + 1 < blocks) begin_block(batches[(block + 1) % 2], call, block + 1);
    messages_.finish(batches[block % 2]);
    const std::size_t offset = block * options_.block_bytes;
    if (offset >= own.size()) continue;
    const std::size_t size = std::min(options_.block_bytes, own.size() - offset);
    sum_block(own.subspan(offset, size), block, call.element);
  }
}

void ExchangeCommunicator::begin_block(RankMessages::Batch& batch, const HostCall& call,
                                       std::size_t block) {
  const std::size_t offset = block * options_.block_bytes;
  // The block of the part that `rank` sums; empty behind its end.
  const auto block_of = [&](int rank) {
    const std::span<std::byte> part = part_summed_by(rank, call);
    const std::size_t begin = std::min(offset, part.size());
    return part.subspan(begin, std::min(options_.block_bytes, part.size() - begin));
  };
  const auto send = [&] {
    for (const int other : others_) messages_.begin_send(batch, other, block_of(other));
  };
  const auto receive = [&] {
    const std::size_t size = block_of(rank_).size();
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
