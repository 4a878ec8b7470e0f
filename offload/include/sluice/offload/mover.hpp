#pragma once
// Mover: moves bytes from their home to device memory (fetch) and back (store). The device's queue
// copies homes in host memory. Homes in files go through a ring of host tiles, several tiles in
// flight, on one thread per direction. A DirectReader, if given, serves the fetches that it takes.
// Stores run in order among themselves. Fetches do too, except for those that a DirectReader
// serves. A fetch is not ordered after a store: finish the store's ticket first.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "sluice/base/ticket.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/offload/device.hpp"
#include "sluice/offload/tiered_bytes.hpp"

namespace sluice::offload {

class DirectReader;

struct MoverOptions {
  std::size_t tile_bytes = 4U << 20U;  // a multiple of 4096
  std::size_t tiles = 3;               // for each direction, at least 3
  // If set, it fetches whole blocks of files; the bytes after the last whole block go through
  // tiles.
  DirectReader* direct = nullptr;
};

// Bytes of the transfers begun so far.
struct MoverBytes {
  std::uint64_t to_device = 0;
  std::uint64_t from_device = 0;
  std::uint64_t read = 0;  // from files, in whole blocks
  std::uint64_t written = 0;
};

// Thread-safe.
class Mover {
 public:
  // `io` and `staging` may both be null when no home is in a file; then no ring is allocated. The
  // arguments outlive the mover. Takes 2 * tiles * tile_bytes of `staging`. Throws OutOfMemory,
  // InvalidArgument.
  Mover(Device& device, nvme::IoEngine* io, MemoryPool* staging, const MoverOptions& options);
  ~Mover();  // waits for everything begun
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // Copies the first to.size_bytes() bytes of `from`, after `after`: the last use of the memory.
  // Without `after`: after all compute work issued so far. Never blocks. Both arguments stay valid
  // and unchanged until the ticket has finished. Throws InvalidArgument when `from` is smaller, and
  // when a tile is smaller than a block of the file (offset_alignment()).
  Ticket begin_fetch(const TieredBytes& from, DeviceSpan to);
  Ticket begin_fetch(const TieredBytes& from, DeviceSpan to, const ComputePoint& after);
  // Copies `from` to the begin of `to`, after `after`. Without it: after all compute work issued so
  // far. In a file, whole blocks are written where the range has room for them: up to 4095 bytes of
  // the range behind the stored bytes become zero. The range may begin anywhere in a block, but two
  // stores in flight together must not share a block of a file (IoEngine::begin_write).
  // Throws as begin_fetch().
  Ticket begin_store(DeviceSpan from, const TieredBytes& to);
  Ticket begin_store(DeviceSpan from, const TieredBytes& to, const ComputePoint& after);

  // Empty, or why the tiles are not registered with the engine; transfers then cost more CPU time.
  std::string why_unregistered() const;

  MoverBytes bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::offload
