#include <libaio.h>

#include <vector>

#include "bare/bare_swap_slots.hpp"

namespace sluice::bench {

namespace {

class BareLibaioSwap final : public BareSwap {
 public:
  explicit BareLibaioSwap(const SwapRange& range)
      : slots_(range), blocks_(range.depth), events_(range.depth) {
    checked(::io_setup(static_cast<int>(range.depth), &context_), "io_setup");
  }
  ~BareLibaioSwap() override { ::io_destroy(context_); }
  BareLibaioSwap(const BareLibaioSwap&) = delete;
  BareLibaioSwap& operator=(const BareLibaioSwap&) = delete;

  std::uint64_t run(double seconds) override {
    slots_.begin(seconds);
    std::vector<SwapSlot*> ready;
    for (SwapSlot& slot : slots_.all()) {
      slots_.next_read(slot);
      ready.push_back(&slot);
    }
    for (std::size_t in_flight = 0; in_flight > 0 || !ready.empty();) {
      submit(ready);
      in_flight += ready.size();
      ready.clear();
      const long ended = checked(
          ::io_getevents(context_, 1, static_cast<long>(events_.size()), events_.data(), nullptr),
          "io_getevents");
      in_flight -= static_cast<std::size_t>(ended);
      for (long i = 0; i < ended; ++i) {
        const io_event& event = events_[static_cast<std::size_t>(i)];
        auto& slot = *static_cast<SwapSlot*>(event.data);
        if (slots_.goes_on(slot, static_cast<long>(event.res))) ready.push_back(&slot);
      }
    }
    return slots_.moved_bytes();
  }

 private:
  void submit(const std::vector<SwapSlot*>& ready) {
    std::vector<iocb*> blocks;
    for (SwapSlot* slot : ready) {
      iocb& block = blocks_[static_cast<std::size_t>(slot - slots_.all().data())];
      (slot->reading ? ::io_prep_pread : ::io_prep_pwrite)(
          &block, slots_.range().fd, slot->buffer, slots_.range().block_bytes,
          static_cast<long long>(slot->offset_bytes));
      block.data = slot;
      blocks.push_back(&block);
    }
    for (std::size_t sent = 0; sent < blocks.size();) {
      sent += static_cast<std::size_t>(checked(
          ::io_submit(context_, static_cast<long>(blocks.size() - sent), blocks.data() + sent),
          "io_submit"));
    }
  }

  SwapSlots slots_;
  io_context_t context_ = nullptr;
  std::vector<iocb> blocks_;
  std::vector<io_event> events_;
};

}  // namespace

std::unique_ptr<BareSwap> make_bare_libaio_swap(const SwapRange& range) {
  return std::make_unique<BareLibaioSwap>(range);
}

}  // namespace sluice::bench
