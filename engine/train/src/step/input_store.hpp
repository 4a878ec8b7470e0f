#pragma once
// InputStore: the inputs of the units, kept for recompute, by unit and micro-batch, each on the
// tier that the plan gave it. In the backward pass a slot takes the gradient of its input, which
// replaces the input.

#include <torch/types.h>

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
  // Place of one unit's input of one micro-batch. On Tier::device the slot holds the tensor itself
  // and the home is empty.
  struct Slot {
    offload::Tier tier = offload::Tier::device;
    offload::TieredBytes home;
    torch::Tensor tensor;  // on the device: kept, being fetched, or being stored
    std::vector<std::int64_t> sizes;
    Ticket store;
    Ticket fetch;
    enum class State { empty, resident, storing, home, fetching } state = State::empty;
  };

  // `kind`: data type and device of the tensors. `puts_in_flight`: how many tensors may be on their
  // way home at a time; 0: put() blocks until its tensor is at home. `stalls` records the waits.
  InputStore(offload::Mover& mover, const torch::TensorOptions& kind, int puts_in_flight,
             std::vector<std::vector<Slot>> slots, const offload::StallMeter& stalls = {});
  ~InputStore();

  // Takes ownership of the tensor, which is contiguous and has the store's data type and device.
  void put(std::size_t unit, std::size_t micro_batch, torch::Tensor tensor);
  // Starts bringing a slot back, into device memory taken here; does nothing when it is on the
  // device.
  void begin_get(std::size_t unit, std::size_t micro_batch);
  // The tensor of a slot; blocks until it is on the device. `release` empties the slot; `retain`
  // leaves its bytes there (a slot on the device then shares the tensor).
  enum class AfterGet { release, retain };
  torch::Tensor get(std::size_t unit, std::size_t micro_batch, AfterGet after);
  // Waits for transfers in flight, then forgets everything.
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
