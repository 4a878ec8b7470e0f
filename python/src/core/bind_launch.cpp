#include <pybind11/pybind11.h>

#include "core/bindings.hpp"
#include "sluice/base/launch_environment.hpp"

namespace sluice::python {

namespace py = pybind11;

void bind_launch(py::module_& module) {
  py::class_<LaunchEnvironment>(module, "LaunchEnvironment",
                                "The place of this process among the ranks of a run.")
      .def_readonly("launcher", &LaunchEnvironment::launcher)
      .def_readonly("rank", &LaunchEnvironment::rank)
      .def_readonly("world_size", &LaunchEnvironment::world_size)
      .def_readonly("local_rank", &LaunchEnvironment::local_rank)
      .def_readonly("local_size", &LaunchEnvironment::local_size)
      .def_readonly("master_address", &LaunchEnvironment::master_address)
      .def_readonly("master_port", &LaunchEnvironment::master_port);
  module.def(
      "launch_environment", [] { return launch_environment(); },
      "Reads the variables that a launcher has set. Raises ValueError when they cannot be.");
}

}  // namespace sluice::python
