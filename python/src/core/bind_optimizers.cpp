#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <tuple>
#include <vector>

#include "core/bindings.hpp"
#include "core/host_steps.hpp"
#include "sluice/cpu_adam/optimizer.hpp"

namespace sluice::python {

namespace py = pybind11;

namespace {

// parameter, gradient, moments, count, first element
using TensorFields = std::tuple<std::uintptr_t, std::uintptr_t, std::vector<std::uintptr_t>,
                                std::size_t, std::uint64_t>;

std::vector<HostTensor> tensors_of(const std::vector<TensorFields>& fields) {
  std::vector<HostTensor> tensors;
  tensors.reserve(fields.size());
  for (const auto& [parameter, gradient, moments, count, first] : fields)
    tensors.push_back({parameter, gradient, moments, count, first});
  return tensors;
}

void bind_adam(py::module_& module) {
  using cpu_adam::AdamConfig;
  py::class_<AdamConfig>(module, "AdamConfig", "Adam, AdamW and AMSGrad.")
      .def(py::init([](double learning_rate, double beta1, double beta2, double epsilon,
                       double weight_decay, bool decoupled, bool bias_correction, bool amsgrad) {
             return AdamConfig{
                 .learning_rate = learning_rate,
                 .beta1 = beta1,
                 .beta2 = beta2,
                 .epsilon = epsilon,
                 .weight_decay = weight_decay,
                 .decay = decoupled ? cpu_adam::WeightDecay::decoupled : cpu_adam::WeightDecay::l2,
                 .bias_correction = bias_correction,
                 .amsgrad = amsgrad};
           }),
           py::arg("learning_rate"), py::arg("beta1"), py::arg("beta2"), py::arg("epsilon"),
           py::arg("weight_decay"), py::arg("decoupled"), py::arg("bias_correction"),
           py::arg("amsgrad"));
}

void bind_other_configs(py::module_& module) {
  using cpu_adam::AdagradConfig;
  using cpu_adam::LionConfig;
  using cpu_adam::SgdConfig;
  py::class_<AdagradConfig>(module, "AdagradConfig")
      .def(py::init([](double learning_rate, double epsilon, double weight_decay) {
             return AdagradConfig{
                 .learning_rate = learning_rate, .epsilon = epsilon, .weight_decay = weight_decay};
           }),
           py::arg("learning_rate"), py::arg("epsilon"), py::arg("weight_decay"));
  py::class_<LionConfig>(module, "LionConfig")
      .def(py::init([](double learning_rate, double beta1, double beta2, double weight_decay) {
             return LionConfig{.learning_rate = learning_rate,
                               .beta1 = beta1,
                               .beta2 = beta2,
                               .weight_decay = weight_decay};
           }),
           py::arg("learning_rate"), py::arg("beta1"), py::arg("beta2"), py::arg("weight_decay"));
  py::class_<SgdConfig>(module, "SgdConfig")
      .def(py::init([](double learning_rate, double momentum, double dampening, double weight_decay,
                       bool nesterov, bool maximize) {
             return SgdConfig{.learning_rate = learning_rate,
                              .momentum = momentum,
                              .dampening = dampening,
                              .weight_decay = weight_decay,
                              .nesterov = nesterov,
                              .maximize = maximize};
           }),
           py::arg("learning_rate"), py::arg("momentum"), py::arg("dampening"),
           py::arg("weight_decay"), py::arg("nesterov"), py::arg("maximize"));
}

}  // namespace

void bind_optimizers(py::module_& module) {
  bind_adam(module);
  bind_other_configs(module);
  module.def("check_optimizer", &check_config, py::arg("config"),
             "Raises ValueError when a value is out of range.");
  module.def(
      "kernel_in_use", [] { return std::string(cpu_adam::kernel_in_use()); },
      "Name of the SIMD kernel that steps use; SLUICE_SIMD forces one.");
  py::class_<HostSteps>(module, "HostSteps", "Threads that step tensors in host memory.")
      .def(py::init<int>(), py::arg("threads"))
      .def(
          "step",
          [](HostSteps& steps, const cpu_adam::OptimizerConfig& config, std::int64_t step,
             const std::string& parameter_type, const std::string& moment_type,
             const std::vector<TensorFields>& tensors) {
            const py::gil_scoped_release release;
            return steps.step(config, step, {parse_dtype(parameter_type), parse_dtype(moment_type)},
                              tensors_of(tensors));
          },
          py::arg("config"), py::arg("step"), py::arg("parameter_type"), py::arg("moment_type"),
          py::arg("tensors"),
          "Steps tensors, given as (parameter, gradient, moments, count, first element). Returns "
          "the "
          "index of the first tensor that became non-finite, or None.");
}

}  // namespace sluice::python
