#include <liburing.h>
#include <sys/uio.h>

#include <cerrno>

#include "bare/bare_loop.hpp"
#include "sluice/base/error.hpp"

namespace sluice::bench {

namespace {

int checked(int result, const char* what) {
  if (result < 0) throw IoError(-result, what, "bare loop");
  return result;
}

class BareUringLoop final : public BareLoop {
 public:
  BareUringLoop(int fd, std::span<std::byte> memory, unsigned depth) : depth_(depth) {
    checked(::io_uring_queue_init(depth, &ring_,
                                  IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN),
            "io_uring_setup");
    const iovec region{memory.data(), memory.size()};
    checked(::io_uring_register_buffers(&ring_, &region, 1), "io_uring_register_buffers");
    checked(::io_uring_register_files(&ring_, &fd, 1), "io_uring_register_files");
  }
  ~BareUringLoop() override { ::io_uring_queue_exit(&ring_); }
  BareUringLoop(const BareUringLoop&) = delete;
  BareUringLoop& operator=(const BareUringLoop&) = delete;

  void move(bool read, std::uint64_t offset_bytes, std::span<std::byte> data,
            std::uint32_t block_bytes) override {
    unsigned in_flight = 0;
    for (std::size_t at = 0; at < data.size() || in_flight > 0;) {
      for (; in_flight < depth_ && at < data.size(); at += block_bytes, ++in_flight) {
        io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);
        ::io_uring_prep_rw(read ? IORING_OP_READ_FIXED : IORING_OP_WRITE_FIXED, sqe, 0,
                           data.data() + at, block_bytes, offset_bytes + at);
        sqe->flags |= IOSQE_FIXED_FILE;
      }
      checked(::io_uring_submit_and_wait(&ring_, 1), "io_uring_enter");
      io_uring_cqe* cqe = nullptr;
      while (::io_uring_peek_cqe(&ring_, &cqe) == 0) {
        const int moved = checked(cqe->res, read ? "read" : "write");
        if (moved != static_cast<int>(block_bytes)) checked(-EIO, "short transfer");
        ::io_uring_cqe_seen(&ring_, cqe);
        --in_flight;
      }
    }
  }

 private:
  const unsigned depth_;
  io_uring ring_{};
};

}  // namespace

std::unique_ptr<BareLoop> make_bare_uring_loop(int fd, std::span<std::byte> memory,
                                               unsigned depth) {
  return std::make_unique<BareUringLoop>(fd, memory, depth);
}

}  // namespace sluice::bench
