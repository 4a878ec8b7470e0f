#include <cstddef>
#include <limits>
#include <utility>

#include "exchange/exchange_communicator.hpp"
#include "sluice/zero/communicator.hpp"
#include "threads/memory_transport.hpp"

namespace sluice::zero {

std::vector<std::unique_ptr<Communicator>> make_thread_communicators(int world_size) {
  ExchangeOptions options;
  options.messages.size_bytes = std::numeric_limits<std::size_t>::max();  // memory has no limit
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (std::unique_ptr<Transport>& transport : make_memory_transports(world_size))
    ranks.push_back(std::make_unique<ExchangeCommunicator>(std::move(transport), options));
  return ranks;
}

}  // namespace sluice::zero
