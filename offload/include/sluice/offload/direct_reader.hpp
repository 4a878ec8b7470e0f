#pragma once
// DirectReader: reads ranges of files into a device's memory with no host memory of ours between.
// What it does not take goes the usual way (sluice/offload/mover.hpp). Made by
// sluice/offload/direct_storage.hpp.

#include <cstddef>
#include <optional>
#include <string>

#include "sluice/base/ticket.hpp"
#include "sluice/offload/device.hpp"
#include "sluice/offload/tiered_bytes.hpp"

namespace sluice::offload {

// Thread-safe.
class DirectReader {
 public:
  virtual ~DirectReader() = default;  // waits for everything begun

  // Begins to read the first to.size_bytes() bytes of `from`, after `after`. Empty, and nothing is
  // begun, when it does not take this: whole blocks of the file go to device memory that starts at
  // a page, from files that can be read so. The first read of a file looks whether it is such,
  // which takes a moment; otherwise it does not block. The memory stays valid until the ticket has
  // finished, the file until the reader is gone. The ticket's error is an IoError with path, offset
  // and size, or a CudaError.
  virtual std::optional<Ticket> begin_read(const FileRange& from, DeviceSpan to,
                                           const ComputePoint& after) = 0;

  // Empty, or which file could not be read so, and why: the first of them.
  virtual std::string why_not() const = 0;
};

}  // namespace sluice::offload
