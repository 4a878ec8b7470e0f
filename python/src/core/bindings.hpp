#pragma once
// The parts of the module `_core`. Confined to thread: the one that loads the module.

#include <pybind11/pybind11.h>

namespace sluice::python {

void bind_aio(pybind11::module_& module);
void bind_config(pybind11::module_& module);
void bind_launch(pybind11::module_& module);
void bind_optimizers(pybind11::module_& module);
void bind_plan(pybind11::module_& module);

}  // namespace sluice::python
