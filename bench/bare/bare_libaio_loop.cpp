#include <libaio.h>

#include <cerrno>
#include <vector>

#include "bare/bare_loop.hpp"
#include "sluice/base/error.hpp"

namespace sluice::bench {

namespace {

int checked(int result, const char* what) {
  if (result < 0) throw IoError(-result, what, "bare loop");
  return result;
}

class BareLibaioLoop final : public BareLoop {
 public:
  BareLibaioLoop(int fd, unsigned depth)
      : fd_(fd), depth_(depth), blocks_(depth), ready_(depth), events_(depth) {
    checked(::io_setup(static_cast<int>(depth), &context_), "io_setup");
  }
  ~BareLibaioLoop() override { ::io_destroy(context_); }
  BareLibaioLoop(const BareLibaioLoop&) = delete;
  BareLibaioLoop& operator=(const BareLibaioLoop&) = delete;

  void move(bool read, std::uint64_t offset_bytes, std::span<std::byte> data,
            std::uint32_t block_bytes) override {
    std::vector<iocb*> free;
    for (iocb& block : blocks_) free.push_back(&block);
    for (std::size_t at = 0; at < data.size() || free.size() < depth_;) {
      std::size_t count = 0;
      for (; !free.empty() && at < data.size(); at += block_bytes, free.pop_back()) {
        const std::uint64_t place_bytes = offset_bytes + at;
        (read ? ::io_prep_pread : ::io_prep_pwrite)(free.back(), fd_, data.data() + at, block_bytes,
                                                    static_cast<long long>(place_bytes));
        ready_[count++] = free.back();
      }
      for (std::size_t sent = 0; sent < count;) {
        sent += static_cast<std::size_t>(
            checked(::io_submit(context_, static_cast<long>(count - sent), ready_.data() + sent),
                    "io_submit"));
      }
      const int ended =
          checked(::io_getevents(context_, 1, static_cast<long>(depth_), events_.data(), nullptr),
                  "io_getevents");
      for (int i = 0; i < ended; ++i) {
        const auto moved = static_cast<long>(events_[static_cast<std::size_t>(i)].res);
        if (moved != static_cast<long>(block_bytes)) checked(-EIO, "short or failed transfer");
        free.push_back(events_[static_cast<std::size_t>(i)].obj);
      }
    }
  }

 private:
  const int fd_;
  const unsigned depth_;
  io_context_t context_ = nullptr;
  std::vector<iocb> blocks_;
  std::vector<iocb*> ready_;
  std::vector<io_event> events_;
};

}  // namespace

std::unique_ptr<BareLoop> make_bare_libaio_loop(int fd, unsigned depth) {
  return std::make_unique<BareLibaioLoop>(fd, depth);
}

}  // namespace sluice::bench
