#include "core/errors.hpp"

#include <pybind11/pybind11.h>

#include <exception>
#include <string>

#include "sluice/base/error.hpp"
#include "sluice/base/rank_failure.hpp"
#include "sluice/config/config_error.hpp"

namespace sluice::python {

namespace py = pybind11;

namespace {

py::object own_class(const char* name) {
  return py::module_::import("sluice._errors").attr(name);
}

void raise(const py::object& error) {
  PyErr_SetObject(py::type::of(error).ptr(), error.ptr());
}

void raise_config_error(const config::ConfigError& error) {
  const py::object problem_class = own_class("Problem");
  py::list problems;
  for (const config::Problem& problem : error.problems()) {
    problems.append(problem_class(problem.line, problem.column, problem.key_path, problem.message));
  }
  raise(own_class("ConfigError")(error.what(), problems));
}

// Text with paths, whose bytes need not be UTF-8: as os.fsdecode().
py::object text_with_paths(const std::string& text) {
  PyObject* decoded =
      PyUnicode_DecodeFSDefaultAndSize(text.data(), static_cast<py::ssize_t>(text.size()));
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(decoded);
}

// OSError adds the errno's number before the text, and the path behind it.
void raise_os_error(const IoError& error) {
  std::string text = error.what();
  const std::string path_first = error.path() + ": ";
  if (text.rfind(path_first, 0) == 0) text = text.substr(path_first.size());
  raise(py::handle(PyExc_OSError)(error.code().value(), text_with_paths(text),
                                  text_with_paths(error.path())));
}

// As the rank at fault raises it, where a text is enough for that.
void raise_rank_failure(const RankFailure& failure) {
  switch (failure.kind()) {
    case FailureKind::usage:
      return PyErr_SetString(PyExc_ValueError, failure.what());
    case FailureKind::does_not_fit:
      return raise(own_class("DoesNotFit")(failure.what()));
    case FailureKind::storage:
      return raise(own_class("StorageError")(failure.what()));
    case FailureKind::other:
      return raise(own_class("Error")(failure.what()));
  }
}

}  // namespace

void translate_errors() {
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const config::ConfigError& error) {
      raise_config_error(error);
    } catch (const RankFailure& failure) {
      raise_rank_failure(failure);
    } catch (const InvalidArgument& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
    } catch (const IoError& error) {
      raise_os_error(error);
    } catch (const OutOfMemory& error) {
      PyErr_SetString(PyExc_MemoryError, error.what());
    } catch (const Interrupted& error) {
      PyErr_SetString(PyExc_KeyboardInterrupt, error.what());
    } catch (const DoesNotFit& error) {
      raise(own_class("DoesNotFit")(error.what()));
    } catch (const StorageError& error) {
      raise(own_class("StorageError")(text_with_paths(error.what())));
    } catch (const Error& error) {
      raise(own_class("Error")(error.what()));
    }
  });
}

}  // namespace sluice::python
