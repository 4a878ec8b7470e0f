#include "device/device_norms.hpp"

#include <cstring>

#include "device/gradient_stats.hpp"
#include "device/tensor_bytes.hpp"

namespace sluice::train {

DeviceNorms::DeviceNorms(RunDevice& device, std::size_t units, bool pinned)
    : device_(device),
      host_pool_(offload::Tier::host, offload::kUnlimited,
                 pinned ? device.device->make_pinned_source() : offload::make_host_source()),
      host_(host_pool_.allocate(units * sizeof(double), "norms of gradients")),
      results_(torch::zeros({static_cast<std::int64_t>(units)},
                            torch::TensorOptions().dtype(torch::kFloat64).device(device.where))),
      arriving_(units) {}

void DeviceNorms::begin(std::size_t unit, offload::DeviceSpan gradient, DType dtype) {
  arriving_[unit].wait();  // a loop of the user's own sends a unit with each micro-batch
  const torch::NoGradGuard no_grad;
  const torch::Tensor result = results_.narrow(0, static_cast<std::int64_t>(unit), 1);
  const auto issue = [&] {
    issue_squared_norm(device_.gpu.get(), tensor_over(gradient, dtype, device_.where), result);
  };
  if (device_.gpu) {
    device_.gpu->run_on_stream(issue);
  } else {
    issue();
  }
  arriving_[unit] = device_.device->begin_copy_out(
      host_.bytes().subspan(unit * sizeof(double), sizeof(double)), device_span_of(result));
}

double DeviceNorms::finish(std::size_t unit, const offload::StallMeter& stalls,
                           double& stall_seconds) {
  stalls.finish(arriving_[unit], stall_seconds, "norm", {});
  return squared_norm(unit);
}

double DeviceNorms::squared_norm(std::size_t unit) const {
  double value = 0;
  std::memcpy(&value, host_.data() + unit * sizeof(double), sizeof(double));
  return value;
}

}  // namespace sluice::train
