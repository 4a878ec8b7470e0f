#pragma once
// The bound of the engine's software: the fewest instructions that keep `depth` requests of one
// size in flight over a file, in order, on the calling thread. It splits nothing, waits for nobody
// and takes no request that comes back short.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace sluice::bench {

// Thread-compatible: callers synchronise.
class BareLoop {
 public:
  virtual ~BareLoop() = default;
  // Moves data.size() bytes, a multiple of block_bytes, between `data` and the file from
  // offset_bytes on. Throws IoError, also on a short transfer.
  virtual void move(bool read, std::uint64_t offset_bytes, std::span<std::byte> data,
                    std::uint32_t block_bytes) = 0;
};

// `memory` (at most 1 GiB) and `fd` are registered; `data` of every move lies in it. Both outlive
// the loop.
std::unique_ptr<BareLoop> make_bare_uring_loop(int fd, std::span<std::byte> memory, unsigned depth);
std::unique_ptr<BareLoop> make_bare_libaio_loop(int fd, unsigned depth);

}  // namespace sluice::bench
