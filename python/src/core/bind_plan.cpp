#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>

#include "core/bindings.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"
#include "sluice/plan/machine.hpp"
#include "sluice/plan/make_plan.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/plan/plan_text.hpp"
#include "sluice/plan/prediction.hpp"
#include "sluice/plan/storage_choices.hpp"

namespace sluice::python {

namespace py = pybind11;

namespace {

using plan::MachineFacts;
using plan::Plan;

plan::Placement placement_named(const std::string& name) {
  if (name == "configured") return plan::Placement::configured;
  SLUICE_CHECK(name == "resident",
               "placement is \"" + name + "\"; it must be \"configured\" or \"resident\"");
  return plan::Placement::resident;
}

void bind_machine(py::module_& module) {
  py::class_<plan::GpuFacts>(module, "GpuFacts")
      .def(py::init([](int index, std::string name, std::uint64_t total_bytes,
                       std::uint64_t free_bytes) {
             return plan::GpuFacts{index, std::move(name), total_bytes, free_bytes};
           }),
           py::arg("index"), py::arg("name"), py::arg("total_bytes"), py::arg("free_bytes"))
      .def_readonly("index", &plan::GpuFacts::index)
      .def_readonly("name", &plan::GpuFacts::name)
      .def_readonly("total_bytes", &plan::GpuFacts::total_bytes)
      .def_readonly("free_bytes", &plan::GpuFacts::free_bytes);
  py::class_<MachineFacts>(module, "MachineFacts", "The planner's view of a machine.")
      .def_readwrite("total_memory_bytes", &MachineFacts::total_memory_bytes)
      .def_readwrite("available_memory_bytes", &MachineFacts::available_memory_bytes)
      .def_readwrite("memlock_bytes", &MachineFacts::memlock_bytes)
      .def_readwrite("address_space_bytes", &MachineFacts::address_space_bytes)
      .def_readwrite("cores", &MachineFacts::cores)
      .def_readwrite("free_disk_bytes", &MachineFacts::free_disk_bytes)
      .def("clear_group_memory", [](MachineFacts& facts) { facts.group_memory.reset(); })
      .def_property(
          "gpu", [](const MachineFacts& facts) { return facts.device.gpu; },
          [](MachineFacts& facts, std::optional<plan::GpuFacts> gpu) {
            facts.device.host_addressable = !gpu;
            facts.device.gpu = std::move(gpu);
            facts.device_choice.clear();
          });
  module.def("probe_machine", &plan::probe_machine, py::arg("config"),
             py::call_guard<py::gil_scoped_release>());
  module.def("available_memory_bytes", &plan::available_memory_bytes);
}

}  // namespace

void bind_plan(py::module_& module) {
  bind_machine(module);
  py::class_<Plan>(module, "Plan", "Where every byte of a run would live.")
      .def("table", [](const Plan& made) { return plan::plan_table(made); })
      .def(
          "json",
          [](const Plan& made, const std::string& rates_path) {
            std::optional<plan::Prediction> prediction;
            if (const auto saved = plan::load_rates(rates_path, plan::rates_key(made)))
              prediction = plan::predict(made, saved->rates);
            return plan::plan_json(made, prediction);
          },
          py::arg("rates_path"))
      .def("add_storage_choices",
           [](Plan& made) {
             const py::gil_scoped_release release;
             for (std::string& line : plan::storage_choices(made))
               made.choices.push_back(std::move(line));
           })
      .def_readonly("choices", &Plan::choices);
  module.def("format_bytes", &format_bytes, py::arg("size_bytes"));
  module.def("require_rates", &plan::require_rates, py::arg("path"),
             py::call_guard<py::gil_scoped_release>());
  module.def(
      "make_plan",
      [](const config::TrainConfig& config, const config::ModelConfig& model,
         const std::string& placement, const MachineFacts& machine, const std::string& rates_path) {
        const py::gil_scoped_release release;
        return plan::make_plan(config, model, placement_named(placement), machine,
                               rates_path.empty() ? plan::FindRates{} : plan::rates_in(rates_path));
      },
      py::arg("config"), py::arg("model"), py::arg("placement"), py::arg("machine"),
      py::arg("rates_path"));
}

}  // namespace sluice::python
