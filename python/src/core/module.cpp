// The module sluice._core: what needs no PyTorch. sluice/_core.pyi has its signatures.

#include <pybind11/pybind11.h>

#include "core/bindings.hpp"
#include "core/errors.hpp"
#include "sluice/base/threads.hpp"

PYBIND11_MODULE(_core, module) {
  module.doc() = "Drives, host optimizers, configuration and plans, without PyTorch.";
  module.attr("version") = SLUICE_VERSION;
  sluice::fork_count();  // counts from here on
  sluice::python::translate_errors();
  sluice::python::bind_aio(module);
  sluice::python::bind_config(module);
  sluice::python::bind_launch(module);
  sluice::python::bind_optimizers(module);
  sluice::python::bind_plan(module);
}
