#pragma once
// OutsideBudget: memory for LibTorch's tensors with copies of what an engine holds.

namespace sluice::train {

// While this object lives, tensors that its thread makes on the CPU take the system's memory and
// nothing of "device_bytes", as they do where a GPU computes. They may outlive the object and the
// engine. Objects may be nested. Confined to the thread that made it.
class __attribute__((visibility("default"))) OutsideBudget {
 public:
  OutsideBudget();
  ~OutsideBudget();
  OutsideBudget(const OutsideBudget&) = delete;
  OutsideBudget& operator=(const OutsideBudget&) = delete;
};

}  // namespace sluice::train
