#include "step/input_store.hpp"

#include <algorithm>
#include <utility>

#include "device/tensor_bytes.hpp"
#include "sluice/base/error.hpp"

namespace sluice::train {

InputStore::InputStore(offload::Mover& mover, const torch::TensorOptions& kind, int puts_in_flight,
                       std::vector<std::vector<Slot>> slots, const offload::StallMeter& stalls)
    : mover_(mover),
      kind_(kind),
      puts_in_flight_(puts_in_flight),
      stalls_(stalls),
      slots_(std::move(slots)) {}

InputStore::~InputStore() {
  clear();
}

InputStore::Slot& InputStore::slot(std::size_t unit, std::size_t micro_batch) {
  SLUICE_CHECK(unit < slots_.size() && micro_batch < slots_[unit].size(),
               "unit " + std::to_string(unit) + " has no input for micro-batch " +
                   std::to_string(micro_batch));
  return slots_[unit][micro_batch];
}

void InputStore::finish_store(Slot& slot) {
  storing_.erase(std::find(storing_.begin(), storing_.end(), &slot));
  slot.state = Slot::State::home;
  stalls_.finish(slot.store, put_stall_seconds_, "output", {});
  slot.tensor = torch::Tensor();
}

void InputStore::put(std::size_t unit, std::size_t micro_batch, torch::Tensor tensor) {
  Slot& to = slot(unit, micro_batch);
  SLUICE_CHECK(tensor.is_contiguous() && tensor.dtype() == kind_.dtype() &&
                   tensor.device() == kind_.device(),
               "a unit input must be contiguous and of the store's data type and device");
  if (to.state == Slot::State::storing) finish_store(to);
  to.sizes = tensor.sizes().vec();
  to.tensor = std::move(tensor);
  if (to.tier == offload::Tier::device) {
    to.state = Slot::State::resident;
    return;
  }
  const auto most = static_cast<std::size_t>(std::max(1, puts_in_flight_));
  while (storing_.size() >= most) finish_store(*storing_.front());
  to.state = Slot::State::storing;
  storing_.push_back(&to);
  to.store = mover_.begin_store(device_span_of(to.tensor), to.home);
  if (puts_in_flight_ == 0) finish_store(to);
}

void InputStore::start_fetch(Slot& slot) {
  if (slot.state == Slot::State::storing) finish_store(slot);
  SLUICE_CHECK(slot.state == Slot::State::home, "a unit input was asked for that is not there");
  slot.tensor = torch::empty(slot.sizes, kind_);
  slot.state = Slot::State::fetching;
  slot.fetch = mover_.begin_fetch(slot.home, device_span_of(slot.tensor));
}

void InputStore::begin_get(std::size_t unit, std::size_t micro_batch) {
  Slot& from = slot(unit, micro_batch);
  const bool elsewhere = from.state == Slot::State::home || from.state == Slot::State::storing;
  if (elsewhere) start_fetch(from);
}

torch::Tensor InputStore::get(std::size_t unit, std::size_t micro_batch, AfterGet after) {
  Slot& from = slot(unit, micro_batch);
  if (from.state == Slot::State::resident) {
    if (after == AfterGet::retain) return from.tensor;
    from.state = Slot::State::empty;
    return std::move(from.tensor);
  }
  if (from.state != Slot::State::fetching) start_fetch(from);
  from.state = after == AfterGet::retain ? Slot::State::home : Slot::State::empty;
  stalls_.finish(from.fetch, get_stall_seconds_, "input", {});
  return std::exchange(from.tensor, torch::Tensor());
}

void InputStore::clear() {
  for (auto& unit : slots_) {
    for (Slot& each : unit) {
      each.store = Ticket();
      each.fetch = Ticket();
      each.tensor = torch::Tensor();
      each.state = Slot::State::empty;
    }
  }
  storing_.clear();
}

}  // namespace sluice::train
