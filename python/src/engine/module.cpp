// The module sluice._engine: training of PyTorch modules, for the PyTorch it was built with.
// sluice/_engine.pyi has its signatures.

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "core/errors.hpp"
#include "engine/bind_loop.hpp"
#include "sluice/train/outside_budget.hpp"

namespace {

// Python's own handlers of the exit cannot change the exit code. The exit code of a script that
// fails by itself stays. Only the first call counts.
void fail_at_exit() {
  static const int registered = ::on_exit(
      [](int status, void*) {
        if (status != 0) return;
        std::fflush(nullptr);
        ::_exit(EXIT_FAILURE);
      },
      nullptr);
  static_cast<void>(registered);
}

}  // namespace

PYBIND11_MODULE(_engine, module) {
  module.doc() = "Training of PyTorch modules over memory tiers.";
  sluice::python::translate_errors();
  sluice::python::bind_loop(module);
  module.def("fail_at_exit", &fail_at_exit);
  pybind11::class_<sluice::train::OutsideBudget>(module, "OutsideBudget").def(pybind11::init<>());
}
