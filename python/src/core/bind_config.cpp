#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "core/bindings.hpp"
#include "sluice/config/model_config.hpp"
#include "sluice/config/train_config.hpp"

namespace sluice::python {

namespace py = pybind11;

void bind_config(py::module_& module) {
  py::class_<config::TrainConfig>(module, "TrainConfig", "A checked training configuration.")
      .def_readonly("path", &config::TrainConfig::path)
      .def_readonly("notes", &config::TrainConfig::notes);
  py::class_<config::ModelConfig>(module, "ModelConfig", "A checked model file.");

  module.def(
      "load_train_config",
      [](const std::string& path, const std::vector<std::string>& tuned, int world_size) {
        return config::load_train_config(path, {.world_size = world_size, .tuned_paths = tuned});
      },
      py::arg("path"), py::arg("tuned"), py::arg("world_size"));
  module.def(
      "parse_train_config",
      [](const std::string& text, const std::string& shown_path, int world_size) {
        return config::parse_train_config(text, shown_path, {.world_size = world_size});
      },
      py::arg("text"), py::arg("shown_path"), py::arg("world_size"));
  module.def("strict_json", &config::strict_json, py::arg("path"));
  module.def(
      "is_base64",
      [](const std::string& source) { return !config::decoded_config(source).empty(); },
      py::arg("source"));
  module.def("load_model_config", &config::load_model_config, py::arg("path"));
  module.def(
      "parse_model_config",
      [](const std::string& text, const std::string& shown_path) {
        return config::parse_model_config(text, shown_path);
      },
      py::arg("text"), py::arg("shown_path"));
}

}  // namespace sluice::python
