#include <liburing.h>
#include <sys/uio.h>

#include "bare/bare_swap_slots.hpp"

namespace sluice::bench {

namespace {

class BareUringSwap final : public BareSwap {
 public:
  explicit BareUringSwap(const SwapRange& range) : slots_(range) {
    checked(::io_uring_queue_init(range.depth, &ring_,
                                  IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN),
            "io_uring_setup");
    const iovec region{slots_.memory().data(), slots_.memory().size()};
    checked(::io_uring_register_buffers(&ring_, &region, 1), "io_uring_register_buffers");
    checked(::io_uring_register_files(&ring_, &range.fd, 1), "io_uring_register_files");
  }
  ~BareUringSwap() override { ::io_uring_queue_exit(&ring_); }
  BareUringSwap(const BareUringSwap&) = delete;
  BareUringSwap& operator=(const BareUringSwap&) = delete;

  std::uint64_t run(double seconds) override {
    slots_.begin(seconds);
    std::size_t in_flight = 0;
    for (SwapSlot& slot : slots_.all()) {
      slots_.next_read(slot);
      submit(slot);
      ++in_flight;
    }
    while (in_flight > 0) {
      checked(::io_uring_submit_and_wait(&ring_, 1), "io_uring_enter");
      io_uring_cqe* cqe = nullptr;
      while (::io_uring_peek_cqe(&ring_, &cqe) == 0) {
        auto& slot = *static_cast<SwapSlot*>(::io_uring_cqe_get_data(cqe));
        const int moved = cqe->res;
        ::io_uring_cqe_seen(&ring_, cqe);
        if (slots_.goes_on(slot, moved))
          submit(slot);
        else
          --in_flight;
      }
    }
    return slots_.moved_bytes();
  }

 private:
  void submit(SwapSlot& slot) {
    io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);
    ::io_uring_prep_rw(slot.reading ? IORING_OP_READ_FIXED : IORING_OP_WRITE_FIXED, sqe, 0,
                       slot.buffer, slots_.range().block_bytes, slot.offset_bytes);
    sqe->flags |= IOSQE_FIXED_FILE;
    ::io_uring_sqe_set_data(sqe, &slot);
  }

  SwapSlots slots_;
  io_uring ring_{};
};

}  // namespace

std::unique_ptr<BareSwap> make_bare_uring_swap(const SwapRange& range) {
  return std::make_unique<BareUringSwap>(range);
}

}  // namespace sluice::bench
