// The module sluice._engine: training of PyTorch modules, for the PyTorch it was built with.
// sluice/_engine.pyi has its signatures.

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/errors.hpp"
#include "engine/bind_loop.hpp"
#include "engine/log_lines.hpp"
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

// A line may name a file whose bytes are no UTF-8.
pybind11::object text_of(const std::string& line) {
  PyObject* text =
      PyUnicode_DecodeUTF8(line.data(), static_cast<Py_ssize_t>(line.size()), "backslashreplace");
  if (text == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::object>(text);
}

void bind_log_lines(pybind11::module_& module) {
  using sluice::python::LogLines;
  using Release = pybind11::call_guard<pybind11::gil_scoped_release>;
  const auto take = [](LogLines& lines) {
    std::vector<LogLines::Line> taken;
    {
      const pybind11::gil_scoped_release release;
      taken = lines.take();
    }
    pybind11::list result;
    for (const auto& [level, line] : taken)
      result.append(pybind11::make_tuple(static_cast<int>(level), text_of(line)));
    return result;
  };
  pybind11::class_<LogLines>(module, "LogLines")
      .def(pybind11::init<>(), Release())
      .def("take", take)
      .def("end", &LogLines::end, Release());
}

}  // namespace

PYBIND11_MODULE(_engine, module) {
  module.doc() = "Training of PyTorch modules over memory tiers.";
  sluice::python::translate_errors();
  sluice::python::bind_loop(module);
  module.def("fail_at_exit", &fail_at_exit);
  pybind11::class_<sluice::train::OutsideBudget>(module, "OutsideBudget").def(pybind11::init<>());
  bind_log_lines(module);
}
