#pragma once
// Messages between ranks that are threads of one process: the receiver copies from the sender's
// memory. Not installed.

#include <memory>
#include <vector>

#include "exchange/transport.hpp"

namespace sluice::zero {

// One transport for each rank; element r belongs to the thread of rank r. Messages of at most
// `eager_bytes` are done once they are begun, whether or not they are received.
std::vector<std::unique_ptr<Transport>> make_memory_transports(int world_size,
                                                               std::size_t eager_bytes = 4096);

}  // namespace sluice::zero
