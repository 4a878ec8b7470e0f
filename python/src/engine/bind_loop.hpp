#pragma once
// The class Loop of the module `_engine`. Confined to thread: the one that loads the module.

#include <pybind11/pybind11.h>

namespace sluice::python {

void bind_loop(pybind11::module_& module);

}  // namespace sluice::python
