// The module sluice._engine: training of PyTorch modules, for the PyTorch it was built with.
// sluice/_engine.pyi has its signatures.

#include <pybind11/pybind11.h>

#include "core/errors.hpp"
#include "engine/bind_loop.hpp"

PYBIND11_MODULE(_engine, module) {
  module.doc() = "Training of PyTorch modules over memory tiers.";
  sluice::python::translate_errors();
  sluice::python::bind_loop(module);
}
