#pragma once
// HostSteps: steps of an optimizer over tensors in host memory, on threads of its own. Tensors in
// 16 bits have no fp32 master: each step computes in fp32 and rounds the parameter to nearest.
//
// Knows addresses, not Python objects: the caller keeps the memory alive. Needs no GIL.
// Thread-safe for tensors that do not overlap.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "sluice/base/dtype.hpp"
#include "sluice/base/executor.hpp"
#include "sluice/base/mutex.hpp"
#include "sluice/cpu_adam/optimizer.hpp"

namespace sluice::python {

// Addresses of one tensor's memory, of `count` elements each.
struct HostTensor {
  std::uintptr_t parameter = 0;
  std::uintptr_t gradient = 0;
  std::vector<std::uintptr_t> moments;
  std::size_t count = 0;
  std::uint64_t first_element = 0;  // as cpu_adam::Tile::first_element
};

// Types of tensors that are stepped together. The gradient has the parameter's type.
struct HostTypes {
  DType parameter = DType::fp32;
  DType moments = DType::fp32;  // fp32 or bf16
};

// Throws InvalidArgument when a value is out of range.
void check_config(const cpu_adam::OptimizerConfig& config);

class HostSteps {
 public:
  // Throws InvalidArgument when `threads` is below 1.
  explicit HostSteps(int threads);
  ~HostSteps();
  HostSteps(const HostSteps&) = delete;
  HostSteps& operator=(const HostSteps&) = delete;

  // Step number `step`, from 1, of all tensors. Blocks. Returns the index of the first tensor in
  // which a parameter or a moment became non-finite; empty: all are finite. Throws InvalidArgument,
  // as cpu_adam::step(), before anything is written.
  std::optional<std::size_t> step(const cpu_adam::OptimizerConfig& config, std::int64_t step,
                                  const HostTypes& types, const std::vector<HostTensor>& tensors);

 private:
  Executor& executor();

  const int threads_;
  Mutex mutex_;
  std::unique_ptr<Executor> executor_ SLUICE_GUARDED_BY(mutex_);
  std::uint64_t forks_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::python
