#include "copy/copy_limit.hpp"

#include <cstring>
#include <vector>

#include "slices.hpp"
#ifndef SLUICE_HAVE_CUDA
#include "sluice/base/error.hpp"
#endif

namespace sluice::bench {

namespace {

class MemcpyLimit final : public CopyLimit {
 public:
  explicit MemcpyLimit(std::size_t size_bytes) : from_(size_bytes, 1), to_(size_bytes) {}
  double seconds(Direction direction) override {
    return seconds_of([&] {
      for (int i = 0; i < (direction == Direction::both ? 2 : 1); ++i)
        std::memcpy(to_.data(), from_.data(), from_.size());
    });
  }

 private:
  std::vector<char> from_, to_;
};

}  // namespace

std::unique_ptr<CopyLimit> make_memcpy_limit(std::size_t size_bytes) {
  return std::make_unique<MemcpyLimit>(size_bytes);
}

#ifndef SLUICE_HAVE_CUDA
std::unique_ptr<CopyLimit> make_cuda_limit(std::size_t) {
  throw InvalidArgument("this build has no CUDA: it was made without its headers");
}
#endif

}  // namespace sluice::bench
