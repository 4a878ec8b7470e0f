#pragma once
// InputStore: the inputs of the units, kept for recompute, by unit and micro-batch, each at the
// tier the plan gave it. In the backward pass a slot takes the gradient of its input instead: its
// input is not needed any more.

#include <torch/torch.h>

#include <cstddef>
#include <deque>
#include <vector>

#include "sluice/base/ticket.hpp"
#include "sluice/offload/device.hpp"
#include "sluice/offload/mover.hpp"
#include "sluice/offload/stall_meter.hpp"
#include "sluice/offload/tiered_bytes.hpp"

namespace sluice::train {

// Confined to the computing thread.
class InputStore {
 public:
  // `homes[unit][micro_batch]`: on Tier::device the slot keeps the tensor itself and the home is
  // empty.
  struct Slot {
    offload::Tier tier = offload::Tier::device;
    offload::TieredBytes home;
    torch::Tensor tensor;  // on the device: kept, being fetched, or being stored
    std::vector<std::int64_t> sizes;
    Ticket store;
    Ticket fetch;
    enum class State { empty, kept, storing, home, fetching } state = State::empty;
  };

  // `kind`: data type and device of the tensors. `puts_in_flight`: tensors that may be on their way
  // out at a time; 0: put() blocks until its tensor is at home. `stalls`: where its waits are
  // recorded.
  InputStore(offload::Mover& mover, const torch::TensorOptions& kind, int puts_in_flight,
             std::vector<std::vector<Slot>> slots, const offload::StallMeter& stalls = {});
  ~InputStore();

  // Takes over the tensor: contiguous, of the store's data type and device.
  void put(std::size_t unit, std::size_t micro_batch, torch::Tensor tensor);
  // Starts bringing a slot back, into device memory taken here; nothing when it is on the device.
  void begin_get(std::size_t unit, std::size_t micro_batch);
  // The tensor of a slot; blocks until it is on the device. The slot is empty afterwards unless
  // `keep`: then its bytes stay (for a slot on the device, the tensor is shared).
  enum class Keep { no, yes };
  torch::Tensor get(std::size_t unit, std::size_t micro_batch, Keep keep);
  // Forgets everything, after waiting for what is on its way.
  void clear();

  double get_stall_seconds() const { return get_stall_seconds_; }
  double put_stall_seconds() const { return put_stall_seconds_; }

 private:
  Slot& slot(std::size_t unit, std::size_t micro_batch);
  void finish_store(Slot& slot);
  void start_fetch(Slot& slot);

  offload::Mover& mover_;
  const torch::TensorOptions kind_;
  const int puts_in_flight_;
  const offload::StallMeter stalls_;
  std::vector<std::vector<Slot>> slots_;
  std::deque<Slot*> storing_;
  double get_stall_seconds_ = 0;
  double put_stall_seconds_ = 0;
};

}  // namespace sluice::train
