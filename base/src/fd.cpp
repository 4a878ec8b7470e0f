#include "sluice/base/fd.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "sluice/base/log.hpp"

namespace sluice {

void UniqueFd::reset() noexcept {
  const int fd = std::exchange(fd_, -1);
  // Linux releases the descriptor even when close() reports EINTR or EIO: never repeat it.
  if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) {
    log(LogLevel::error, std::string("close: ") + std::strerror(errno));
  }
}

}  // namespace sluice
