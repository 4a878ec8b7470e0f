#pragma once
// Messages between ranks that are threads of one process: the receiver copies from the sender's
// memory, or reads it there. Not installed.

#include <cstddef>
#include <memory>
#include <vector>

#include "exchange/transport.hpp"

namespace sluice::zero {

struct MemoryOptions {
  // Messages of at most so many bytes are done once they are begun, whether or not received.
  std::size_t eager_bytes = 4096;
  bool lends = true;  // begin_offer is possible
};

// One transport for each rank; element r belongs to rank r.
std::vector<std::unique_ptr<Transport>> make_memory_transports(int world_size,
                                                               const MemoryOptions& options = {});

}  // namespace sluice::zero
