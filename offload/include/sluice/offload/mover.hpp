#pragma once
// Mover: brings bytes from their home to device memory and back. Homes in host memory are copied by
// the device's queue; homes in files go through a ring of host tiles, several tiles in flight, one
// thread for each direction, or, those fetches that it takes, to a DirectReader. Fetches run in
// order among themselves unless a DirectReader has some of them, stores always do; a fetch is not
// ordered after a store: finish the store's ticket first.

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
  // Where it is there, whole blocks of files are fetched by it, and their last bytes through tiles.
  DirectReader* direct = nullptr;
};

struct MoverStalls {
  // Of what goes through tiles.
  double fetch_read_seconds = 0;   // waiting for the drive to read
  double fetch_copy_seconds = 0;   // waiting for copies into the device
  double store_copy_seconds = 0;   // waiting for copies out of the device
  double store_write_seconds = 0;  // waiting for the drive to write
};

// What has been begun so far.
struct MoverBytes {
  std::uint64_t to_device = 0;
  std::uint64_t from_device = 0;
  std::uint64_t read = 0;  // of files, whole blocks
  std::uint64_t written = 0;
};

// Thread-safe.
class Mover {
 public:
  // `io` and `staging` may be null when no home is in a file: then no ring is allocated. What is
  // given outlives the mover. Takes 2 * tiles * tile_bytes of `staging`. Throws OutOfMemory,
  // InvalidArgument.
  Mover(Device& device, nvme::IoEngine* io, MemoryPool* staging, const MoverOptions& options);
  ~Mover();  // waits for everything begun
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // Copies the first device_to.size() bytes of `from` to device memory, after all compute work
  // issued so far, or after the point given: that of the last use of the memory; never blocks. Both
  // stay valid and unchanged until the ticket has finished. Throws InvalidArgument when `from` is
  // smaller.
  Ticket begin_fetch(const TieredBytes& from, DeviceSpan to);
  Ticket begin_fetch(const TieredBytes& from, DeviceSpan to, const ComputePoint& after);
  // The other way, after all compute work issued so far. In a file, whole blocks are written where
  // the range has room for them: up to 4095 bytes of the range behind the stored ones become zero.
  Ticket begin_store(DeviceSpan from, const TieredBytes& to);

  // Empty, or why the tiles could not be registered with the engine: transfers work, and cost more
  // CPU time.
  std::string why_unregistered() const;

  MoverStalls stalls() const;
  MoverBytes bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::offload
