#pragma once
// DirectReader: reads ranges of files into device memory without a staging buffer in host memory. A
// read that it declines goes through host tiles (sluice/offload/mover.hpp).
// sluice/offload/direct_storage.hpp makes the reader.

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

  // Begins to read the first to.size_bytes() bytes of `from`, after `after`. Returns empty, and
  // begins nothing, when it declines: it takes whole blocks of the file, to device memory that
  // starts at a page, from files that can be read directly. The first read of a file blocks for a
  // moment to test the file; later reads do not block. The memory stays valid until the ticket has
  // finished, the file until the reader is gone. The ticket's error is an IoError with path, offset
  // and size, or a CudaError.
  virtual std::optional<Ticket> begin_read(const FileRange& from, DeviceSpan to,
                                           const ComputePoint& after) = 0;

  // Empty, or the first file that could not be read directly, and the reason.
  virtual std::string why_not() const = 0;
};

}  // namespace sluice::offload
